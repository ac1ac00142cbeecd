// Bundles the dashboard's scripts, styles, fonts and icons into ../static/dashboard/build.
import { mkdir, readFile, rm, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, "..", "static", "dashboard", "build");

/** Every icon that a template or a script names, from feather-icons. */
const ICONS = [
  "activity", "alert-circle", "alert-triangle", "bar-chart-2", "check", "chevron-down", "chevron-left", "chevron-right", "chevron-up", "clipboard",
  "copy", "database", "file-text", "key", "log-out", "message-square", "monitor", "moon", "plus", "rotate-ccw", "search",
  "send", "server", "sliders", "square", "sun", "terminal", "trash-2", "user", "x",
];

/** One sprite: pages reference `icons.svg#name`, so an icon costs one request for all. */
async function sprite() {
  const symbols = await Promise.all(
    ICONS.map(async (name) => {
      const svg = await readFile(join(here, "node_modules", "feather-icons", "dist", "icons", `${name}.svg`), "utf8");
      const body = svg.replace(/^<svg[^>]*>/, "").replace(/<\/svg>\s*$/, "");
      return `<symbol id="${name}" viewBox="0 0 24 24">${body}</symbol>`;
    }),
  );
  await writeFile(join(out, "icons.svg"), `<svg xmlns="http://www.w3.org/2000/svg">${symbols.join("")}</svg>\n`);
}

const options = {
  absWorkingDir: here,
  entryPoints: ["src/app.ts", "src/overview.ts", "src/workers.ts", "src/playground.ts", "src/cache.ts", "src/styles/app.css"],
  outdir: out,
  entryNames: "[name]",
  chunkNames: "chunks/[name]-[hash]",
  assetNames: "fonts/[name]",
  bundle: true,
  splitting: true,
  format: "esm",
  minify: true,
  legalComments: "linked",
  target: ["chrome123", "firefox121", "safari17.5"],
  loader: { ".woff2": "file" },
  logLevel: "info",
};

await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
await sprite();
if (process.argv.includes("--watch")) {
  const context = await esbuild.context(options);
  await context.watch();
} else {
  await esbuild.build(options);
}
