/** The strip of figures at the top of the overview: value, unit, and what changed against the minute before. */
import { money } from "./charts.ts";
import { find, setText } from "./dom.ts";
import { count, DASH, dollars, latency, percent, type Quantity } from "./format.ts";
import type { Frame } from "./frames.ts";

interface Tile {
  value(frame: Frame): number | null;
  show(value: number | null): Quantity;
  note(frame: Frame): string;
  /** Which way is good news, if either. */
  good: "up" | "down" | null;
}

const MINUTE_S = 60;
/** Less than this share of change is noise. */
const STEADY = 0.03;

function p99(value: number | null | undefined): string {
  if (value === null || value === undefined) return "nothing for 10 s";
  const { value: text, unit } = latency(value);
  return `p99 ${text} ${unit}`;
}

const TILES: Record<string, Tile> = {
  output: {
    value: (frame) => frame.tokens_per_s.output,
    show: (value) => ({ value: count(value), unit: "tokens/s" }),
    note: (frame) => `${count(frame.tokens_per_s.hit + frame.tokens_per_s.miss)} prompt tokens/s`,
    good: null,
  },
  hits: {
    value: (frame) => frame.hit_rate,
    show: (value) => ({ value: percent(value), unit: "%" }),
    note: (frame) => (frame.hit_rate === null ? "no prompt for 10 s" : `${count(frame.tokens_per_s.hit)} cached tokens/s`),
    good: "up",
  },
  ttft: {
    value: (frame) => frame.ttft_ms?.p50 ?? null,
    show: latency,
    note: (frame) => p99(frame.ttft_ms?.p99),
    good: "down",
  },
  tbt: {
    value: (frame) => frame.tbt_ms?.p50 ?? null,
    show: latency,
    note: (frame) => p99(frame.tbt_ms?.p99),
    good: "down",
  },
  requests: {
    value: (frame) => frame.running,
    show: (value) => ({ value: count(value), unit: "running" }),
    note: (frame) => `${count(frame.waiting)} waiting · ${count(frame.requests_per_s)} req/s`,
    good: null,
  },
  money: {
    value: (frame) => money(frame.cost_per_hour_usd),
    show: (value) => ({ value: dollars(value), unit: "/ h" }),
    note: (frame) => `${dollars(money(frame.revenue_per_hour_usd))} revenue`,
    good: null,
  },
};

function mean(tile: Tile, frames: readonly Frame[]): number | null {
  const known = frames.map((frame) => tile.value(frame)).filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

function change(tile: Tile, frames: readonly Frame[], to: number): { text: string; tone: string } {
  const now = mean(tile, frames.filter((frame) => frame.at > to - MINUTE_S));
  const before = mean(tile, frames.filter((frame) => frame.at <= to - MINUTE_S && frame.at > to - 2 * MINUTE_S));
  if (now === null || before === null || before === 0) return { text: DASH, tone: "none" };
  const share = now / before - 1;
  if (Math.abs(share) < STEADY) return { text: "steady", tone: "none" };
  const rising = share > 0;
  const tone = tile.good === null ? "none" : (tile.good === "up") === rising ? "good" : "bad";
  const amount = Math.abs(share) >= 9.995 ? ">999" : percent(Math.abs(share)).replace(/\.\d$/, "");
  return { text: `${rising ? "↑" : "↓"} ${amount} %`, tone };
}

export function drawTiles(frames: readonly Frame[], latest: Frame): void {
  for (const element of document.querySelectorAll<HTMLElement>("[data-tile]")) {
    const tile = TILES[element.dataset["tile"] ?? ""];
    if (tile === undefined) continue;
    const { value, unit } = tile.show(tile.value(latest));
    setText(find("[data-value]", element), value);
    setText(find("[data-unit]", element), unit);
    setText(find("[data-note]", element), tile.note(latest));
    const { text, tone } = change(tile, frames, latest.at);
    const delta = find<HTMLElement>("[data-delta]", element);
    setText(delta, text);
    delta.dataset["tone"] = tone;
  }
}
