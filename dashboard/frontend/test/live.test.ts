import assert from "node:assert/strict";
import { test } from "node:test";
import { Sequencer } from "../src/lib/live.ts";

test("frames apply in order", () => {
  const sequencer = new Sequencer();
  sequencer.reset(10);
  assert.deepEqual([11, 12, 13].map((seq) => sequencer.accept(seq)), ["apply", "apply", "apply"]);
});

test("nothing applies before a snapshot", () => {
  assert.equal(new Sequencer().accept(1), "gap");
});

test("a missing number is a gap until a snapshot heals it", () => {
  const sequencer = new Sequencer();
  sequencer.reset(10);
  assert.equal(sequencer.accept(12), "gap");
  assert.equal(sequencer.accept(13), "gap");
  sequencer.reset(13);
  assert.equal(sequencer.accept(14), "apply");
});

test("what the snapshot had is ignored, numbers that start anew are a gap", () => {
  const sequencer = new Sequencer();
  sequencer.reset(500);
  assert.equal(sequencer.accept(500), "ignore");
  assert.equal(sequencer.accept(499), "ignore");
  assert.equal(sequencer.accept(1), "gap");
});
