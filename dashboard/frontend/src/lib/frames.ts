/** What the telemetry process says once a second (controlplane/telemetry/frames.py), and the history kept of it. */

export interface Percentiles {
  p50: number | null;
  p90: number | null;
  p99: number | null;
}

export interface WorkerFrame {
  worker: string;
  epoch: number;
  rank: number;
  role: string;
  node: string;
  deployment: string;
  revision: string;
  state: string;
  step_age_s: number;
  running: number;
  waiting: number;
  blocks_total: number;
  blocks_used: number;
  blocks_cached: number;
  transfers: number;
  tokens_per_s: number;
  /** Share of the rows of prompts, over all layers, that the trimmed tail saved. */
  trimmed: number;
  observed_age_s: number;
  stale: boolean;
}

export interface Frame {
  seq: number;
  /** Unix seconds, UTC. */
  at: number;
  window_s: number;
  /** `store_hit` and `recomputed` are parts of `hit`. */
  tokens_per_s: { hit: number; miss: number; output: number; store_hit?: number; recomputed?: number };
  hit_rate: number | null;
  ttft_ms: Percentiles | null;
  tbt_ms: Percentiles | null;
  running: number;
  waiting: number;
  /** Decimal dollars; absent for viewers who may not see money. */
  cost_per_hour_usd?: string;
  revenue_per_hour_usd?: string;
  requests_per_s: number;
  errors_per_s: number;
  /** Only on the newest frame of a snapshot. */
  workers?: WorkerFrame[];
}

export interface Snapshot {
  seq: number;
  frames: Frame[];
}

/** Frames in the order of their time, at most `capacity`. */
export class History {
  readonly capacity: number;
  #frames: Frame[] = [];

  constructor(capacity: number) {
    this.capacity = capacity;
  }

  get latest(): Frame | undefined {
    return this.#frames.at(-1);
  }

  get oldestAt(): number | undefined {
    return this.#frames[0]?.at;
  }

  /** A snapshot knows better than what is kept for the time that it covers; what is older stays. */
  replace(frames: readonly Frame[]): void {
    const from = frames[0]?.at ?? Number.POSITIVE_INFINITY;
    this.#frames = [...this.#frames.filter((frame) => frame.at < from), ...frames].slice(-this.capacity);
  }

  push(frame: Frame): void {
    this.#frames.push(frame);
    if (this.#frames.length > this.capacity) this.#frames.splice(0, this.#frames.length - this.capacity);
  }

  since(at: number): Frame[] {
    const first = this.#frames.findIndex((frame) => frame.at >= at);
    return first < 0 ? [] : this.#frames.slice(first);
  }
}
