/** Numbers as a reader of a dashboard wants them: short, aligned, with a unit; null is a dash. */

export interface Quantity {
  value: string;
  unit: string;
}

export const DASH = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function fixed(value: number, digits: number): string {
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** Three significant digits: 7.25, 72.5, 725, 7,250; then k, M. */
export function count(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 10) return Number.isInteger(value) ? String(value) : fixed(value, size < 1 ? 2 : 1);
  if (size < 10_000) return whole.format(value);
  if (size < 1_000_000) return `${fixed(value / 1_000, 1)}k`;
  return `${fixed(value / 1_000_000, 2)}M`;
}

/** Milliseconds below a second, seconds above. */
export function latency(ms: number | null | undefined): Quantity {
  if (ms === null || ms === undefined) return { value: DASH, unit: "ms" };
  if (ms < 10) return { value: fixed(ms, 1), unit: "ms" };
  if (ms < 1_000) return { value: whole.format(ms), unit: "ms" };
  return { value: fixed(ms / 1_000, ms < 10_000 ? 2 : 1), unit: "s" };
}

/** A tick of an axis that reaches to `topMs`: all ticks in one unit, without idle zeros. */
export function latencyTick(ms: number, topMs: number): string {
  if (ms === 0) return "0";
  return topMs < 1_000 ? `${Number(ms.toFixed(1))} ms` : `${Number((ms / 1_000).toFixed(2))} s`;
}

/** A share of one as a percentage. */
export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined) return DASH;
  return fixed(share * 100, share > 0 && share < 0.1 ? 1 : 0);
}

/** Dollars: cents where they matter, four digits where they are all there is. */
export function dollars(amount: number | null | undefined): string {
  if (amount === null || amount === undefined || !Number.isFinite(amount)) return DASH;
  const size = Math.abs(amount);
  const sign = amount < 0 ? "−" : "";
  if (size !== 0 && size < 0.0001) return `${sign}$<0.0001`;
  if (size >= 1_000) return `${sign}$${whole.format(size)}`;
  const digits = size >= 0.1 ? 2 : 4;
  return `${sign}$${size.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: digits })}`;
}

/** 8 s, 3 min 20 s, 4 h 5 min, 2 d 3 h. */
export function duration(seconds: number): string {
  const total = Math.max(0, Math.round(seconds));
  if (total < 60) return `${total} s`;
  if (total < 3_600) return `${Math.floor(total / 60)} min${total % 60 ? ` ${total % 60} s` : ""}`;
  const minutes = Math.floor(total / 60);
  if (minutes < 1_440) return `${Math.floor(minutes / 60)} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
  const hours = Math.floor(minutes / 60);
  return `${Math.floor(hours / 24)} d${hours % 24 ? ` ${hours % 24} h` : ""}`;
}

/** Age of a step: milliseconds below a second, tenths below ten. */
export function age(seconds: number): string {
  if (seconds < 0.9995) return `${Math.round(Math.max(0, seconds) * 1_000)} ms`;
  return seconds < 10 ? `${fixed(seconds, 1)} s` : duration(seconds);
}
