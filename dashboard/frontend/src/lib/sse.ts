/** Server-sent events out of a fetch body: `data:` payloads in order; comments (keep-alives) are skipped. */
export async function* events(body: ReadableStream<Uint8Array<ArrayBuffer>>): AsyncGenerator<string> {
  const reader = body.pipeThrough<string>(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array<ArrayBuffer>>).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      buffer += value;
      for (;;) {
        const end = /\r?\n\r?\n/.exec(buffer);
        if (end === null) break;
        const data = payload(buffer.slice(0, end.index));
        buffer = buffer.slice(end.index + end[0].length);
        if (data !== null) yield data;
      }
    }
    const last = payload(buffer);
    if (last !== null) yield last;
  } finally {
    await reader.cancel().catch(() => undefined); // already closed or aborted: nothing is left to free
  }
}

function payload(block: string): string | null {
  const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.length ? lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n") : null;
}
