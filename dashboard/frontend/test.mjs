// Bundles the tests of the scripts and runs them with node's own runner.
import { spawnSync } from "node:child_process";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as esbuild from "esbuild";

const out = await mkdtemp(join(tmpdir(), "galley-dashboard-"));
const tests = (await readdir("test")).filter((name) => name.endsWith(".test.ts"));
await esbuild.build({
  entryPoints: tests.map((name) => join("test", name)),
  outdir: out,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  format: "esm",
  platform: "node",
  target: "node20",
  logLevel: "warning",
});
const files = tests.map((name) => join(out, name.replace(/\.ts$/, ".mjs")));
const { status } = spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" });
await rm(out, { recursive: true, force: true });
process.exit(status ?? 1);
