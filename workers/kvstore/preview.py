"""What a policy would do, before it is saved: what goes at once, and what that means for the hit rate.

The hit rate comes from reuse intervals: blocks that were used again after an interval (histogram `reuse`), and blocks
that had gone when they were asked for again (`ghost`). A life of T would have hit every interval up to T.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from workers.kvstore.extent import ExtentId
from workers.kvstore.index import Index
from workers.kvstore.policy import PIN, RetentionPolicy, class_of

HISTORY_DAYS: Final = 14
AGES_S: Final = (60, 600, 3600, 6 * 3600, 86_400, 3 * 86_400, 7 * 86_400, 14 * 86_400, 30 * 86_400)
"""Upper bounds of the age groups; the last group is open."""
_PAGE: Final = 1000


@dataclass(slots=True)
class ClassForecast:
    prompt_blocks: int = 0
    """Blocks of all prompts in the window (the denominator); 0: nothing is known yet."""
    hit_rate: float | None = None
    """Under the policy as it is."""
    new_hit_rate: float | None = None


@dataclass(slots=True)
class Preview:
    extents: int = 0
    blocks: int = 0
    bytes: int = 0
    blocks_by_age: dict[str, int] = field(default_factory=dict)
    bytes_by_age: dict[str, int] = field(default_factory=dict)
    over_budget_bytes: dict[str, int] = field(default_factory=dict)
    """What would go beyond that because a class (or `total`) is over its budget, least recently used first."""
    forecast: dict[str, ClassForecast] = field(default_factory=dict)


def age_label(seconds: float) -> str:
    """`<= 1 h` and so on, for the age groups of previews and pages."""
    for bound in AGES_S:
        if seconds <= bound:
            value, unit = next((bound / s, u) for s, u in ((86_400, "d"), (3600, "h"), (60, "min")) if bound >= s)
            return f"<= {value:g} {unit}"
    return f"> {AGES_S[-1] // 86_400} d"


class Previewer:
    """Reads only; takes a few round trips per thousand extents."""

    def __init__(self, index: Index) -> None:
        self._index = index

    def preview(self, current: RetentionPolicy, new: RetentionPolicy) -> Preview:
        """What publishing `new` in place of `current` would remove at the next sweep. Raises IndexUnavailable."""
        out = Preview()
        now = self._index.now_us()
        names = self._claims()
        kept: Counter[str] = Counter()
        total_kept = 0
        pinned = self._pinned(new)
        for extent, blocks, size, claims in self._extents(names):
            if PIN in claims or extent in pinned:
                total_kept += size
                continue
            if new.live(claims, now):
                total_kept += size
                holders = {class_of(name) for name, last in claims.items() if now - last <= new.ttl_us(name)}
                kept.update(dict.fromkeys(holders, size))
            elif current.live(claims, now):
                label = age_label((now - max(claims.values(), default=now)) / 1e6)
                out.extents += 1
                out.blocks += blocks
                out.bytes += size
                out.blocks_by_age[label] = out.blocks_by_age.get(label, 0) + blocks
                out.bytes_by_age[label] = out.bytes_by_age.get(label, 0) + size
        budgets = {item.name: item.byte_budget for item in new.classes} | {"total": new.total_bytes}
        kept["total"] = total_kept
        for name, budget in budgets.items():
            if budget is not None and kept[name] > budget:
                out.over_budget_bytes[name] = kept[name] - int(new.low_watermark * budget)
        for item in new.classes:
            out.forecast[item.name] = self._forecast(item.name, current.find(item.name).ttl_s, item.ttl_s)
        return out

    def histogram(self, kind: str, retention_class: str, days: int = HISTORY_DAYS) -> Counter[str]:
        """Sum of the daily histograms `reuse`, `ghost` (quarter octaves of seconds) or `prompt` (blocks, hit)."""
        today = self._index.day()
        with self._index.guarded() as client:
            pipe = client.pipeline(transaction=False)
            for day in range(today - days + 1, today + 1):
                pipe.hgetall(self._index.key("h", kind, retention_class, str(day)))
            found = pipe.execute()
        total: Counter[str] = Counter()
        for part in found:
            total.update({key.decode(): int(value) for key, value in part.items()})
        return total

    def _forecast(self, name: str, ttl_s: float, new_ttl_s: float) -> ClassForecast:
        prompts = self.histogram("prompt", name)["blocks"]
        if not prompts:
            return ClassForecast()
        intervals = self.histogram("reuse", name) + self.histogram("ghost", name)
        return ClassForecast(prompts, _within(intervals, ttl_s) / prompts, _within(intervals, new_ttl_s) / prompts)

    def _claims(self) -> list[str]:
        with self._index.guarded() as client:
            return sorted(name.decode() for name in client.smembers(self._index.key("classes")))

    def _pinned(self, policy: RetentionPolicy) -> set[ExtentId]:
        """Extents that only the new policy pins (the pins of the current one are claims already)."""
        found: set[ExtentId] = set()
        record = self._index.key("x").encode() + b":"
        for pin in policy.pins:
            name = bytes.fromhex(pin.tip)[:16]
            while name:
                with self._index.guarded() as client:
                    value = client.get(self._index.key("b").encode() + b":" + name)
                    if value is None or ExtentId(value[:16]) in found:
                        break
                    found.add(ExtentId(value[:16]))
                    name = client.hget(record + value[:16], "p") or b""
        return found

    def _extents(self, names: list[str]) -> Iterator[tuple[ExtentId, int, int, dict[str, int]]]:
        """(id, blocks, bytes, claims) of every extent."""
        start, fields = 0, [f"c:{name}" for name in names]
        while True:
            with self._index.guarded() as client:
                ids = client.zrange(self._index.key("all"), start, start + _PAGE - 1)
                if not ids:
                    return
                pipe = client.pipeline(transaction=False)
                for extent in ids:
                    pipe.hmget(self._index.key("x").encode() + b":" + extent, "n", "b", *fields)
                answers = pipe.execute()
            for extent, (blocks, size, *scores) in zip(ids, answers, strict=True):
                if blocks is not None:
                    claims = {n: int(score) for n, score in zip(names, scores, strict=True) if score is not None}
                    yield ExtentId(extent), int(blocks), int(size), claims
            start += len(ids)


def interval_bounds(bucket: int) -> tuple[float, float]:
    """Seconds that a bucket of the reuse histograms covers: quarter octaves; bucket 0 starts at 0."""
    return (0.0 if bucket == 0 else 2 ** (bucket / 4), 2 ** ((bucket + 1) / 4))


def _within(intervals: Counter[str], ttl_s: float) -> float:
    """Blocks with intervals up to `ttl_s`; a bucket that it cuts counts by its share on the logarithmic scale."""
    total = 0.0
    for bucket, blocks in intervals.items():
        low, high = interval_bounds(int(bucket))
        if ttl_s >= high:
            total += blocks
        elif ttl_s > low:
            total += blocks * (
                (math.log(ttl_s) - math.log(low)) / (math.log(high) - math.log(low)) if low else ttl_s / high
            )
    return total
