import assert from "node:assert/strict";
import { test } from "node:test";
import { type Frame, History } from "../src/lib/frames.ts";

function frame(at: number): Frame {
  return {
    seq: at,
    at,
    window_s: 1,
    tokens_per_s: { hit: 0, miss: 0, output: 0 },
    hit_rate: null,
    ttft_ms: null,
    tbt_ms: null,
    running: 0,
    waiting: 0,
    requests_per_s: 0,
    errors_per_s: 0,
  };
}

function times(frames: Frame[]): number[] {
  return frames.map(({ at }) => at);
}

test("history is bounded and forgets the oldest", () => {
  const history = new History(3);
  [1, 2, 3, 4].forEach((at) => history.push(frame(at)));
  assert.deepEqual(times(history.since(0)), [2, 3, 4]);
  assert.equal(history.latest?.at, 4);
});

test("a snapshot replaces what it covers and keeps what is older", () => {
  const history = new History(10);
  [1, 2, 3, 7].forEach((at) => history.push(frame(at)));
  history.replace([3, 4, 5, 6, 7].map(frame));
  assert.deepEqual(times(history.since(0)), [1, 2, 3, 4, 5, 6, 7]);
  assert.equal(history.oldestAt, 1);
});

test("an empty snapshot takes nothing away", () => {
  const history = new History(10);
  history.push(frame(1));
  history.replace([]);
  assert.deepEqual(times(history.since(0)), [1]);
});
