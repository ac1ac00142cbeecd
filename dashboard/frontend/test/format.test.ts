import assert from "node:assert/strict";
import { test } from "node:test";
import { age, count, dollars, duration, latency, latencyTick, percent } from "../src/lib/format.ts";

test("counts keep three digits or so", () => {
  const shown = [null, 0, 0.5, 3, 7.26, 72.6, 7250.4, 12_500, 2_340_000].map(count);
  assert.deepEqual(shown, ["–", "0", "0.50", "3", "7.3", "73", "7,250", "12.5k", "2.34M"]);
});

test("latency changes its unit at a second", () => {
  assert.deepEqual(latency(8.41), { value: "8.4", unit: "ms" });
  assert.deepEqual(latency(412), { value: "412", unit: "ms" });
  assert.deepEqual(latency(1_520), { value: "1.52", unit: "s" });
  assert.deepEqual(latency(null), { value: "–", unit: "ms" });
});

test("the ticks of one axis share a unit", () => {
  assert.deepEqual([0, 500, 1_000].map((ms) => latencyTick(ms, 1_500)), ["0", "0.5 s", "1 s"]);
  assert.deepEqual([0, 2.5, 40].map((ms) => latencyTick(ms, 60)), ["0", "2.5 ms", "40 ms"]);
});

test("absent is a dash, not zero", () => {
  assert.equal(percent(null), "–");
  assert.equal(percent(0), "0");
  assert.equal(dollars(null), "–");
  assert.equal(dollars(0), "$0.00");
});

test("dollars show the digits that carry the amount", () => {
  const shown = [1234.5, 1.239, 0.24, 0.05, 0.0123, 0.00001, -2].map(dollars);
  assert.deepEqual(shown, ["$1,235", "$1.24", "$0.24", "$0.05", "$0.0123", "$<0.0001", "−$2.00"]);
});

test("durations", () => {
  const shown = [8.4, 60, 200, 3_600, 14_700, 183_600].map(duration);
  assert.deepEqual(shown, ["8 s", "1 min", "3 min 20 s", "1 h", "4 h 5 min", "2 d 3 h"]);
  assert.deepEqual([0.012, 4.25, 75].map(age), ["12 ms", "4.3 s", "1 min 15 s"]);
});
