"""Public traces as requests: who asks when, with which blocks. Two formats, told apart by their first line.

- `{"timestamp", "input_length", "output_length", "hash_ids"}`: one stream of requests, milliseconds, 512-token blocks
  (the Mooncake chat trace). Block ids are global.
- `{"session", "t", "input_length", "output_length", "ids_rle", ...}`: sessions of coding agents, seconds from the
  session's start, 64-token blocks as [start, length] runs. Ids count per session; the file is grouped by session.

In both an id stands for a block *and* what is before it, and the last id may cover fewer tokens than a block.
"""

from __future__ import annotations

import heapq
import io
import itertools
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

OVERLAP = 32
"""Sessions that run side by side."""
START_JITTER_S = 120.0


@dataclass(frozen=True, slots=True)
class TraceRequest:
    at: float
    """Seconds from the trace's start."""
    session: int
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """Ids, unique within (session)."""
    last_of_session: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    block_tokens: int
    retention_class: str
    requests: list[TraceRequest]
    """In the order of their arrival."""
    overlap: int
    """Most sessions that run at once (0 for traces without sessions)."""


def lines(path: Path) -> Iterator[dict[str, object]]:
    """The JSON lines of a plain or zstd-compressed file."""
    with path.open("rb") as raw:
        stream = zstandard.ZstdDecompressor().stream_reader(raw) if path.suffix == ".zst" else raw
        for line in io.TextIOWrapper(stream, encoding="utf-8"):  # type: ignore[type-var]
            if line.strip():
                yield json.loads(line)


def load(path: Path, *, requests: int | None, seed: int, scale: int = 1, overlap: int = OVERLAP) -> Trace:
    """Read a trace: the first `requests` of a stream, or whole sessions until there are that many and
    `overlap` of them; lengths divided by `scale` (blocks stay what they are, with fewer tokens each)."""
    entries = lines(path)
    first = next(entries)
    everything = itertools.chain([first], entries)
    if "session" in first:
        return _sessions(path.name, everything, requests, seed, scale, overlap)
    chosen = [
        TraceRequest(
            entry["timestamp"] / 1000,  # type: ignore[operator]
            0,
            max(1, entry["input_length"] // scale),  # type: ignore[operator]
            max(1, entry["output_length"] // scale),  # type: ignore[operator]
            tuple(entry["hash_ids"]),  # type: ignore[arg-type]
        )
        for entry in itertools.islice(everything, requests)
    ]
    return Trace(path.name, 512 // scale, "chat", sorted(chosen, key=lambda r: r.at), 0)


def _sessions(
    name: str, entries: Iterable[dict[str, object]], requests: int | None, seed: int, scale: int, overlap: int
) -> Trace:
    """Whole sessions in file order. The first `overlap` start at random instants; each time one is about to end, up to
    a minute before, the next starts."""
    rng = random.Random(seed)
    free = [rng.uniform(0, START_JITTER_S) for _ in range(overlap)]
    heapq.heapify(free)
    chosen: list[TraceRequest] = []
    spans: list[tuple[float, float]] = []
    for number, (_, group) in enumerate(itertools.groupby(entries, key=lambda entry: entry["session"])):
        if requests is not None and len(chosen) >= requests and most_at_once(spans) >= overlap:
            break
        session = list(group)
        start = heapq.heappop(free)
        end = start + max(float(entry["t"]) + float(entry["api"] or 0.0) for entry in session)  # type: ignore[arg-type]
        spans.append((start, end))
        heapq.heappush(free, max(start, end - rng.uniform(0, 60)))
        for position, entry in enumerate(session):
            chosen.append(
                TraceRequest(
                    start + float(entry["t"]),  # type: ignore[arg-type]
                    number,
                    max(1, int(entry["input_length"]) // scale),  # type: ignore[call-overload]
                    max(1, int(entry["output_length"]) // scale),  # type: ignore[call-overload]
                    tuple(i for first, count in entry["ids_rle"] for i in range(first, first + count)),  # type: ignore[attr-defined]
                    position == len(session) - 1,
                )
            )
    chosen.sort(key=lambda r: (r.at, r.session))
    return Trace(name, 64 // scale, "agent", chosen, most_at_once(spans))


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """The largest number of (start, end) spans that share an instant."""
    steps = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    return max(itertools.accumulate(step for _, step in steps), default=0)


@dataclass(slots=True)
class Ideal:
    """What a cache that never forgets would hit, in tokens, and how many blocks that takes."""

    hit_tokens: int = 0
    tokens: int = 0
    unique_blocks: int = 0

    @property
    def rate(self) -> float:
        return self.hit_tokens / self.tokens if self.tokens else 0.0


def ideal(trace: Trace) -> Ideal:
    out = Ideal()
    seen: dict[int, set[int]] = {}
    for request in trace.requests:
        known = seen.setdefault(request.session, set())
        hit = next((n for n, block in enumerate(request.blocks) if block not in known), len(request.blocks))
        out.hit_tokens += min(hit * trace.block_tokens, request.input_tokens)
        out.tokens += request.input_tokens
        before = len(known)
        known.update(request.blocks)
        out.unique_blocks += len(known) - before
        if request.last_of_session:
            del seen[request.session]
    return out
