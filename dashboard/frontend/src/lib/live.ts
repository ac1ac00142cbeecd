import type { Frame, Snapshot } from "./frames.ts";

/** How the page is connected. `seconds`: stale since, or until the next attempt. */
export type LiveState =
  | { kind: "connecting" }
  /** Connected, and telemetry has never said anything. */
  | { kind: "waiting" }
  | { kind: "live" }
  | { kind: "stale"; seconds: number }
  | { kind: "reconnecting"; seconds: number }
  | { kind: "ended"; reason: string; signIn: boolean };

export interface LiveHandlers {
  snapshot(snapshot: Snapshot): void;
  frame(frame: Frame): void;
  state(state: LiveState): void;
}

type Message =
  | ({ kind: "snapshot" } & Snapshot)
  | { kind: "frame"; seq: number; frame: Frame }
  | { kind: "heartbeat" };

/** Close codes of the consumer (dashboard/consumers.py): asking again would not help. */
const CLOSE_SIGNED_OUT = 4401;
const CLOSE_FORBIDDEN = 4403;

const STALE_AFTER_MS = 3_500;
/** The server says something at least every 5 s: a socket silent for longer is dead, whatever it claims. */
const SILENT_AFTER_MS = 15_000;
const BACKOFF_MS = [500, 1_000, 2_000, 4_000, 8_000, 15_000];
/** Frames kept while a snapshot is fetched; more would be in that snapshot anyway. */
const HELD_FRAMES = 30;

/** Orders frames by sequence number and says when one is missing. The channel layer drops silently: this notices. */
export class Sequencer {
  #seq: number | null = null;

  reset(seq: number): void {
    this.#seq = seq;
  }

  /** `apply` in order, `ignore` what is known, `gap` what needs a snapshot (also when the numbers start anew). */
  accept(seq: number): "apply" | "ignore" | "gap" {
    if (this.#seq === null) return "gap";
    if (seq <= this.#seq && seq > this.#seq - HELD_FRAMES) return "ignore";
    if (seq !== this.#seq + 1) return "gap";
    this.#seq = seq;
    return "apply";
  }
}

export class LiveFeed {
  readonly #url: string;
  readonly #snapshotUrl: string;
  readonly #handlers: LiveHandlers;
  readonly #sequencer = new Sequencer();
  #socket: WebSocket | null = null;
  #attempt = 0;
  #retryAt = 0;
  #lastMessage = 0;
  #lastFrame: number | null = null;
  /** Whether the present socket has said anything. */
  #heard = false;
  #held: Frame[] | null = null;
  #ended = false;

  constructor(url: string, snapshotUrl: string, handlers: LiveHandlers) {
    this.#url = url;
    this.#snapshotUrl = snapshotUrl;
    this.#handlers = handlers;
  }

  start(): void {
    this.#handlers.state({ kind: "connecting" });
    this.#connect();
    window.setInterval(() => this.#tick(), 1_000);
    // A laptop that wakes up, or a network that is back: do not wait for the back-off.
    window.addEventListener("online", () => this.#connectNow());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.#connectNow();
    });
  }

  #connectNow(): void {
    if (this.#socket === null && !this.#ended) this.#connect();
  }

  #connect(): void {
    const socket = new WebSocket(this.#url);
    this.#socket = socket;
    this.#lastMessage = performance.now();
    this.#heard = false;
    socket.addEventListener("message", (event) => {
      if (socket === this.#socket) this.#receive(JSON.parse(String(event.data)) as Message);
    });
    socket.addEventListener("close", (event) => {
      if (socket === this.#socket) this.#closed(event.code);
    });
  }

  #receive(message: Message): void {
    this.#lastMessage = performance.now();
    this.#attempt = 0;
    this.#heard = true;
    if (message.kind === "snapshot") this.#apply(message);
    if (message.kind === "frame") this.#take(message.frame);
  }

  #take(frame: Frame): void {
    if (this.#held !== null) {
      this.#held.push(frame);
      if (this.#held.length > HELD_FRAMES) this.#held.shift();
      return;
    }
    const verdict = this.#sequencer.accept(frame.seq);
    if (verdict === "gap") void this.#heal(frame);
    if (verdict === "apply") this.#show(frame);
  }

  #show(frame: Frame): void {
    this.#lastFrame = performance.now();
    this.#handlers.frame(frame);
    this.#handlers.state({ kind: "live" });
  }

  async #heal(first: Frame): Promise<void> {
    this.#held = [first];
    try {
      const response = await fetch(this.#snapshotUrl, { headers: { accept: "application/json" } });
      if (response.status === 401) return this.#end("Signed out", true);
      if (response.ok) this.#apply((await response.json()) as Snapshot);
    } catch (error) {
      // The gateway is away: the socket will close too, and its successor starts with a snapshot.
      console.warn("live: no snapshot", error);
    } finally {
      const held = this.#held ?? [];
      this.#held = null;
      for (const frame of held) {
        if (this.#sequencer.accept(frame.seq) === "apply") this.#show(frame);
      }
    }
  }

  #apply(snapshot: Snapshot): void {
    this.#sequencer.reset(snapshot.seq);
    this.#handlers.snapshot(snapshot);
    const latest = snapshot.frames.at(-1);
    if (latest === undefined) return this.#tick();
    this.#lastFrame = performance.now() - Math.max(0, Date.now() - latest.at * 1_000);
    this.#tick();
  }

  #closed(code: number): void {
    this.#socket = null;
    if (code === CLOSE_SIGNED_OUT) return this.#end("Signed out", true);
    if (code === CLOSE_FORBIDDEN) return this.#end("Not permitted", false);
    const wait = BACKOFF_MS[Math.min(this.#attempt, BACKOFF_MS.length - 1)] ?? 15_000;
    this.#attempt += 1;
    // Spread out: after a restart of the gateway all pages come back at once.
    this.#retryAt = performance.now() + wait * (0.75 + Math.random() / 2);
    this.#tick();
  }

  #end(reason: string, signIn: boolean): void {
    this.#ended = true;
    this.#socket?.close();
    this.#socket = null;
    this.#handlers.state({ kind: "ended", reason, signIn });
  }

  #tick(): void {
    if (this.#ended) return;
    const now = performance.now();
    if (this.#socket === null) {
      if (now >= this.#retryAt) this.#connect();
      const seconds = Math.max(0, Math.ceil((this.#retryAt - now) / 1_000));
      this.#handlers.state({ kind: "reconnecting", seconds });
      return;
    }
    if (now - this.#lastMessage > SILENT_AFTER_MS) {
      const dead = this.#socket;
      this.#closed(1006);
      dead.close();
      return;
    }
    if (!this.#heard) return;
    if (this.#lastFrame === null) return this.#handlers.state({ kind: "waiting" });
    const age = now - this.#lastFrame;
    this.#handlers.state(
      age > STALE_AFTER_MS ? { kind: "stale", seconds: Math.round(age / 1_000) } : { kind: "live" },
    );
  }
}
