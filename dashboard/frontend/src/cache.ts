/** The cache page: one live chart; everything else comes from the server every few seconds. */
import { Chart, type ChartOptions } from "./lib/chart.ts";
import { find } from "./lib/dom.ts";
import { count } from "./lib/format.ts";
import { type Frame, History } from "./lib/frames.ts";
import { startLive } from "./lib/status.ts";

const WINDOW_S = 300;

/** The four add up to the prompt: what was found and ran again is counted once, as recomputed. */
const SPLIT: ChartOptions = {
  series: [
    { label: "Pool hit", colour: "hit", fill: true, read: (frame) => pool(frame) },
    { label: "Store hit", colour: "series-2", fill: true, read: (frame) => frame.tokens_per_s.store_hit ?? 0 },
    { label: "Recomputed", colour: "series-1", read: (frame) => frame.tokens_per_s.recomputed ?? 0 },
    { label: "Miss", colour: "miss", fill: true, read: (frame) => frame.tokens_per_s.miss },
  ],
  format: count,
  tick: count,
  leastTop: 10,
};

function pool(frame: Frame): number {
  const { hit, store_hit, recomputed } = frame.tokens_per_s;
  return Math.max(0, hit - (store_hit ?? 0) - (recomputed ?? 0));
}

const history = new History(WINDOW_S + 60);
const chart = new Chart(find<HTMLElement>("[data-chart=split]"), SPLIT);
let clockSkewS = 0;

function draw(): void {
  const { latest } = history;
  if (latest === undefined) return;
  const to = Math.max(latest.at, Date.now() / 1_000 + clockSkewS - 1);
  chart.draw(history.since(to - WINDOW_S), to - WINDOW_S, to);
}

startLive(
  {
    snapshot({ frames }) {
      history.replace(frames);
      clockSkewS = 0;
      draw();
    },
    frame(frame) {
      history.push(frame);
      clockSkewS = frame.at - Date.now() / 1_000;
      draw();
    },
  },
  (state) => {
    if (state.kind === "stale" || state.kind === "reconnecting") draw();
  },
);
