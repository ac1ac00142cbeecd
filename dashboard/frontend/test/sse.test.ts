import assert from "node:assert/strict";
import { test } from "node:test";
import { events } from "../src/lib/sse.ts";

async function collect(source: AsyncIterable<string>): Promise<string[]> {
  const found: string[] = [];
  for await (const event of source) found.push(event);
  return found;
}

async function read(...pieces: string[]): Promise<string[]> {
  const encoder = new TextEncoder();
  const body = new ReadableStream<Uint8Array<ArrayBuffer>>({
    start(controller) {
      for (const piece of pieces) controller.enqueue(encoder.encode(piece));
      controller.close();
    },
  });
  return collect(events(body));
}

test("events come out whole, however the bytes were cut", async () => {
  assert.deepEqual(await read("data: a", "b\n", "\nda", "ta: c\r\n\r\n"), ["ab", "c"]);
});

test("keep-alives are no events, a last block without its blank line is one", async () => {
  assert.deepEqual(await read(": keep-alive\n\n", "data: a\n\n", "data: [DONE]"), ["a", "[DONE]"]);
});

test("a character cut between two chunks stays whole", async () => {
  const bytes = new TextEncoder().encode("data: é\n\n");
  const body = new ReadableStream<Uint8Array<ArrayBuffer>>({
    start(controller) {
      controller.enqueue(bytes.slice(0, 7));
      controller.enqueue(bytes.slice(7));
      controller.close();
    },
  });
  assert.deepEqual(await collect(events(body)), ["é"]);
});

test("several data lines are one event", async () => {
  assert.deepEqual(await read("data: a\ndata: b\n\n"), ["a\nb"]);
});
