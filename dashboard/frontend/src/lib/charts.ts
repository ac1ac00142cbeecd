/** The charts of the overview: what each reads out of a frame. */
import type { ChartOptions, Series } from "./chart.ts";
import { count, dollars, latency, latencyTick, percent } from "./format.ts";
import type { Frame, Percentiles } from "./frames.ts";

function milliseconds(value: number | null): string {
  const { value: text, unit } = latency(value);
  return `${text} ${unit}`;
}

function percentiles(read: (frame: Frame) => Percentiles | null): Series[] {
  return [
    { label: "p50", colour: "series-1", width: 2, read: (frame) => read(frame)?.p50 ?? null },
    { label: "p90", colour: "series-2", read: (frame) => read(frame)?.p90 ?? null },
    { label: "p99", colour: "series-3", width: 1.25, read: (frame) => read(frame)?.p99 ?? null },
  ];
}

export function money(text: string | undefined): number | null {
  return text === undefined ? null : Number(text);
}

export const CHARTS: Record<string, ChartOptions> = {
  tokens: {
    series: [
      { label: "Hit", colour: "hit", fill: true, read: (frame) => frame.tokens_per_s.hit },
      { label: "Miss", colour: "miss", fill: true, read: (frame) => frame.tokens_per_s.miss },
      { label: "Output", colour: "output", fill: true, read: (frame) => frame.tokens_per_s.output },
    ],
    format: count,
    tick: count,
    leastTop: 10,
  },
  ttft: { series: percentiles((frame) => frame.ttft_ms), format: milliseconds, tick: latencyTick, leastTop: 10 },
  tbt: { series: percentiles((frame) => frame.tbt_ms), format: milliseconds, tick: latencyTick, leastTop: 10 },
  hits: {
    series: [{ label: "Hit rate", colour: "hit", fill: true, read: (frame) => frame.hit_rate }],
    format: (value) => `${percent(value)} %`,
    tick: (value) => `${Math.round(value * 100)} %`,
    top: 1,
  },
  requests: {
    series: [
      { label: "Running", colour: "series-1", fill: true, width: 2, read: (frame) => frame.running },
      { label: "Waiting", colour: "miss", read: (frame) => frame.waiting },
    ],
    format: count,
    tick: count,
    leastTop: 4,
  },
  money: {
    series: [
      { label: "Revenue", colour: "green", fill: true, read: (frame) => money(frame.revenue_per_hour_usd) },
      { label: "Cost", colour: "series-1", width: 2, read: (frame) => money(frame.cost_per_hour_usd) },
    ],
    format: dollars,
    tick: dollars,
    leastTop: 0.01,
  },
};
