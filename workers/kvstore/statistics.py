"""What the store holds and what became of the rest: for `store stats`, the cache page and `/metrics`. Reads only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from workers.kvstore.clock import micros
from workers.kvstore.index import Index
from workers.kvstore.policy import PIN
from workers.kvstore.preview import AGES_S, age_label


@dataclass(slots=True)
class Size:
    bytes: int = 0
    blocks: int = 0
    extents: int = 0


@dataclass(slots=True)
class ClassUse:
    """What one class claims. Extents that several classes use count in each."""

    bytes: int = 0
    extents: int = 0
    extents_by_age: dict[str, int] = field(default_factory=dict)
    """By time since the last use in this class."""


@dataclass(slots=True)
class Statistics:
    total: Size
    tenants: dict[str, Size]
    """By salt id."""
    models: dict[str, Size]
    """By identity fingerprint."""
    kinds: dict[str, Size]
    """`paged`, and each kind of sidecar."""
    claims: dict[str, ClassUse]
    gone: dict[str, Counter[str]]
    """Blocks by reason (`expired`, `capacity`, `class_budget`, `purged`, `corrupt`, ...) and claim, over the window."""
    ghosts: dict[str, int]
    index_bytes: int
    """Memory of the Valkey server."""


def read(index: Index, *, days: int = 14) -> Statistics:
    """One round trip for sizes and one per claim. Raises IndexUnavailable."""
    today = index.day()
    with index.guarded() as client:
        names = sorted(name.decode() for name in client.smembers(index.key("classes")))
        pipe = client.pipeline(transaction=False)
        for part in ("bytes", "blocks", "extents", "claims"):
            pipe.hgetall(index.key("size", part))
        for day in range(today - days + 1, today + 1):
            pipe.hgetall(index.key("gone", str(day)))
        found = pipe.execute()
        memory = int(client.info("memory")["used_memory"])
        parts, claimed = found[:3], {key.decode(): int(value) for key, value in found[3].items()}
        claims = {name: ClassUse(claimed.get(name, 0), *_ages(client, index, name)) for name in names}
        ghosts = {name: int(client.zcard(index.key("gz", name))) for name in names if name != PIN}
    owners: dict[str, Size] = {}
    for part, values in zip(("bytes", "blocks", "extents"), parts, strict=True):
        for key, value in values.items():
            setattr(owners.setdefault(key.decode(), Size()), part, int(value))
    gone: dict[str, Counter[str]] = {}
    for values in found[4:]:
        for key, value in values.items():
            reason, claim, part = key.decode().split("|")
            if part == "blocks":
                gone.setdefault(reason, Counter())[claim] += int(value)
    return Statistics(
        total=owners.get("total", Size()),
        tenants=_below("t:", owners),
        models=_below("m:", owners),
        kinds=_below("k:", owners),
        claims=claims,
        gone=gone,
        ghosts=ghosts,
        index_bytes=memory,
    )


def _below(prefix: str, owners: dict[str, Size]) -> dict[str, Size]:
    return {name.removeprefix(prefix): size for name, size in owners.items() if name.startswith(prefix)}


def _ages(client: Any, index: Index, claim: str) -> tuple[int, dict[str, int]]:
    """Extents of a claim, and how many of them by age."""
    now, key = index.now_us(), index.key("u", claim)
    pipe = client.pipeline(transaction=False)
    pipe.zcard(key)
    newer: float | str = "+inf"
    for bound in AGES_S:
        pipe.zcount(key, now - micros(bound), newer)
        newer = f"({now - micros(bound)}"
    pipe.zcount(key, "-inf", newer)
    total, *counts = pipe.execute()
    labels = [*(age_label(bound) for bound in AGES_S), age_label(AGES_S[-1] + 1)]
    return int(total), {label: int(count) for label, count in zip(labels, counts, strict=True) if count}
