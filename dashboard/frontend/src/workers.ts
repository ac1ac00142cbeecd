/** The workers page: rows come from the server (state and reason), what moves each second from the feed. */
import { setText } from "./lib/dom.ts";
import { age, count, duration } from "./lib/format.ts";
import type { WorkerFrame } from "./lib/frames.ts";
import { startLive } from "./lib/status.ts";

let latest: readonly WorkerFrame[] = [];
let receivedAt = 0;

function cell(row: Element, name: string): HTMLElement | null {
  return row.querySelector<HTMLElement>(`[data-cell="${name}"]`);
}

function drawRow(row: HTMLElement, worker: WorkerFrame, sinceReceived: number): void {
  const observed = worker.observed_age_s + sinceReceived;
  const stale = worker.stale || observed > 5;
  row.classList.toggle("is-stale", stale);
  const staleness = cell(row, "stale");
  if (staleness) staleness.hidden = !stale;
  setText(staleness, `Stale for ${duration(observed)}`);
  setText(cell(row, "epoch"), String(worker.epoch));
  setText(cell(row, "step"), age(worker.step_age_s + sinceReceived));
  setText(cell(row, "requests"), `${count(worker.running)} / ${count(worker.waiting)}`);
  setText(cell(row, "tokens"), count(worker.tokens_per_s));
  setText(cell(row, "trimmed"), worker.trimmed > 0 ? `tail trimmed: ${Math.round(worker.trimmed * 100)} % less` : "");
  const share = worker.blocks_total > 0 ? worker.blocks_used / worker.blocks_total : 0;
  const cached = worker.blocks_total > 0 ? worker.blocks_cached / worker.blocks_total : 0;
  setText(cell(row, "kv-share"), `${Math.round(share * 100)} %`);
  setText(
    cell(row, "kv-blocks"),
    `${count(worker.blocks_used)} / ${count(worker.blocks_total)} blocks, ${Math.round(cached * 100)} % cached`,
  );
  const meter = row.querySelector<HTMLProgressElement>("progress");
  if (meter) {
    meter.value = share;
    meter.classList.toggle("meter-full", share > 0.9);
  }
}

/** A time ahead, counted down; past it, by how much: what is overdue deserves a look. */
function countdown(element: HTMLElement): void {
  const left = Number(element.dataset["countdown"]) - Date.now() / 1_000;
  const label = element.dataset["label"] ?? "";
  setText(element, left >= 0 ? `${label} in ${duration(left)}` : `${label} overdue by ${duration(-left)}`);
}

function draw(): void {
  const sinceReceived = receivedAt === 0 ? 0 : (performance.now() - receivedAt) / 1_000;
  const byName = new Map(latest.map((worker) => [worker.worker, worker]));
  for (const row of document.querySelectorAll<HTMLElement>("[data-worker]")) {
    const worker = byName.get(row.dataset["worker"] ?? "");
    if (worker) drawRow(row, worker, sinceReceived > 2 ? sinceReceived : 0);
  }
  for (const element of document.querySelectorAll<HTMLElement>("[data-since]")) {
    const since = Number(element.dataset["since"]);
    setText(element, `for ${duration(Date.now() / 1_000 - since)}`);
  }
  document.querySelectorAll<HTMLElement>("[data-countdown]").forEach(countdown);
}

/** The server's rows are fetched again when the feed says something else than they do, and every few seconds anyway. */
function refetchWhenChanged(): void {
  const shown = [...document.querySelectorAll<HTMLElement>("[data-worker]")].filter((row) => row.dataset["live"] === "yes");
  const known = new Map(shown.map((row) => [row.dataset["worker"], row]));
  const differs = latest.some((worker) => {
    const row = known.get(worker.worker);
    return row === undefined || row.dataset["state"] !== worker.state;
  });
  if (differs) document.body.dispatchEvent(new CustomEvent("galley:fleet-changed"));
}

function received(workers: readonly WorkerFrame[]): void {
  latest = workers;
  receivedAt = performance.now();
  draw();
  refetchWhenChanged();
}

document.body.addEventListener("htmx:afterSwap", draw);
window.setInterval(draw, 1_000);
startLive({
  snapshot: ({ frames }) => {
    const workers = frames.at(-1)?.workers;
    if (workers) received(workers);
  },
  frame: (frame) => received(frame.workers ?? []),
});
draw();
