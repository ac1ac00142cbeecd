/** The overview: tiles, charts and a short list of workers, all from one live feed. */
import { Chart } from "./lib/chart.ts";
import { CHARTS } from "./lib/charts.ts";
import { find, setText } from "./lib/dom.ts";
import { type Frame, History, type Snapshot } from "./lib/frames.ts";
import { startLive } from "./lib/status.ts";
import { drawTiles } from "./lib/tiles.ts";
import { drawWorkerList } from "./lib/workerlist.ts";

const HOUR_S = 3_600;
const DEFAULT_WINDOW_S = 300;
/** The newest frame is at the right edge; tiles compare with the minute before. */
const TILE_HISTORY_S = 120;

const history = new History(HOUR_S + 60);
const charts = [...document.querySelectorAll<HTMLElement>("[data-chart]")].flatMap((card) => {
  const options = CHARTS[card.dataset["chart"] ?? ""];
  return options ? [new Chart(card, options)] : [];
});
let windowS = DEFAULT_WINDOW_S;
/** By how much the server's clock is ahead of ours, in seconds. */
let clockSkewS = 0;

function draw(): void {
  const { latest } = history;
  if (latest === undefined) return;
  // While frames stop, the charts go on to the right: silence is seen as silence.
  const to = Math.max(latest.at, Date.now() / 1_000 + clockSkewS - 1);
  const frames = history.since(to - windowS);
  for (const chart of charts) chart.draw(frames, to - windowS, to);
  drawTiles(history.since(latest.at - TILE_HISTORY_S), latest);
}

function received(frame: Frame): void {
  clockSkewS = frame.at - Date.now() / 1_000;
  find<HTMLElement>("#overview").dataset["seen"] = "";
  drawWorkerList(frame.workers ?? []);
  draw();
}

function snapshot({ frames }: Snapshot): void {
  history.replace(frames);
  const { latest } = history;
  if (latest === undefined) return;
  received(latest);
  // A snapshot may be old, when telemetry is away: its age is not a skew.
  clockSkewS = 0;
}

/** Longer windows than the feed's first snapshot are fetched when somebody wants them. */
async function widen(seconds: number): Promise<void> {
  const oldest = history.oldestAt ?? Number.POSITIVE_INFINITY;
  const newest = history.latest?.at ?? 0;
  if (newest - oldest >= seconds - 2) return;
  const response = await fetch(`/live/snapshot?seconds=${seconds}`, { headers: { accept: "application/json" } });
  if (!response.ok) throw new Error(`snapshot: ${response.status}`);
  const { frames } = (await response.json()) as Snapshot;
  const last = frames.at(-1)?.at ?? 0;
  history.replace([...frames, ...history.since(last).filter((frame) => frame.at > last)]);
}

function chooseWindow(seconds: number): void {
  windowS = seconds;
  for (const button of document.querySelectorAll<HTMLElement>("[data-window]")) {
    button.ariaPressed = String(Number(button.dataset["window"]) === seconds);
  }
  draw();
  widen(seconds).then(draw, (error: unknown) => {
    console.warn(error);
    setText(find("#window-error"), "The longer history could not be fetched. Choose the window again to retry.");
  });
  setText(find("#window-error"), "");
}

for (const button of document.querySelectorAll<HTMLElement>("[data-window]")) {
  button.addEventListener("click", () => chooseWindow(Number(button.dataset["window"])));
}

startLive(
  {
    snapshot,
    frame(frame) {
      history.push(frame);
      received(frame);
    },
  },
  (state) => {
    if (state.kind === "stale" || state.kind === "reconnecting") draw();
  },
);
