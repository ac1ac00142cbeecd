"""What the cache page, `store stats` and the API say of the store: one reading, put into words that people use."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.utils import timezone

from controlplane.caching import selectors
from controlplane.caching.errors import StoreUnavailable
from controlplane.caching.identities import models_by_fingerprint, tenants_by_salt
from controlplane.caching.store import Disk, disk, previewer, reachable
from controlplane.telemetry import selectors as telemetry
from controlplane.telemetry.models import COARSE_S
from controlplane.telemetry.selectors import Resolution
from controlplane.telemetry.services import period_start
from workers.kvstore import statistics
from workers.kvstore.policy import PIN, RetentionPolicy, claims_of_class
from workers.kvstore.preview import AGES_S, HISTORY_DAYS, age_label, interval_bounds
from workers.kvstore.statistics import Size, Statistics

DAYS: Final = HISTORY_DAYS


@dataclass(frozen=True, slots=True)
class Bar:
    """One group of a histogram; `share` is of the largest, for drawing."""

    label: str
    count: int
    share: float
    beyond_life: bool = False
    """Whether the group lies past the life of the class."""


@dataclass(frozen=True, slots=True)
class ClassUse:
    name: str
    life_s: float
    byte_budget: int | None
    bytes: int
    """Claimed, sidecars included; what several classes use counts in each."""
    sidecar_bytes: int
    extents: int
    ages: list[Bar]
    """Extents by time since their last use."""
    reuse: list[Bar]
    """Blocks by the time that had passed when they were used again, those that had gone by then included."""
    returned: int
    """Blocks that were asked for again after they had gone."""
    prompt_blocks: int
    hit_blocks: int

    @property
    def hit_rate(self) -> float | None:
        """Of full blocks of prompts, over the last two weeks."""
        return self.hit_blocks / self.prompt_blocks if self.prompt_blocks else None

    @property
    def used_again(self) -> bool:
        return any(bar.count for bar in self.reuse)

    @property
    def budget_share(self) -> float | None:
        return self.bytes / self.byte_budget if self.byte_budget else None


@dataclass(frozen=True, slots=True)
class Owner:
    """A tenant or a model, by its name where that is known, else by its digest."""

    name: str
    digest: str
    known: bool
    size: Size


@dataclass(frozen=True, slots=True)
class Eviction:
    reason: str
    blocks: int
    blocks_by_class: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contents:
    """What the index says. `disk` None: the folder does not answer."""

    total: Size
    pinned_bytes: int
    disk: Disk | None
    index_bytes: int
    classes: list[ClassUse]
    tenants: list[Owner]
    models: list[Owner]
    evictions: list[Eviction]


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a bar that stands for everything."""

    name: str
    start: float
    share: float


@dataclass(frozen=True, slots=True)
class Split:
    """Prompt tokens of a window by where they came from; the first four are all of them."""

    label: str
    pool: int = 0
    store: int = 0
    recomputed: int = 0
    """Found, and run again all the same."""
    miss: int = 0
    short: int = 0
    """The part of `miss` of prompts shorter than one block."""

    @property
    def total(self) -> int:
        return self.pool + self.store + self.recomputed + self.miss

    @property
    def hit_rate(self) -> float | None:
        return (self.total - self.miss) / self.total if self.total else None

    def segments(self) -> list[Segment]:
        """The shares side by side, those of nothing left out."""
        found, start = [], 0.0
        for name, tokens, share in self.shares():
            if tokens:
                found.append(Segment(name, start, share))
            start += share
        return found

    def shares(self) -> list[tuple[str, int, float]]:
        """(class, tokens, share of all)."""
        parts = (("pool", self.pool), ("store", self.store), ("recomputed", self.recomputed), ("miss", self.miss))
        return [(name, tokens, tokens / self.total if self.total else 0.0) for name, tokens in parts]


def contents() -> Contents:
    """Raises StoreUnavailable."""
    policy = selectors.current_policy()
    with reachable() as index:
        read = statistics.read(index, days=DAYS)
        classes = [_class_use(policy, read, item.name) for item in policy.classes]
    pins = read.claims.get(PIN)
    return Contents(
        total=read.total,
        pinned_bytes=pins.bytes if pins else 0,
        disk=disk(),
        index_bytes=read.index_bytes,
        classes=classes,
        tenants=_owners(read.tenants, tenants_by_salt()),
        models=_owners(read.models, models_by_fingerprint()),
        evictions=_evictions(read),
    )


def _class_use(policy: RetentionPolicy, read: Statistics, name: str) -> ClassUse:
    item = policy.find(name)
    main, *sidecars = (read.claims.get(claim) for claim in claims_of_class(name))
    looked = previewer()
    reuse, ghost = looked.histogram("reuse", name), looked.histogram("ghost", name)
    prompt = looked.histogram("prompt", name)
    sidecar_bytes = sum(claim.bytes for claim in sidecars if claim)
    return ClassUse(
        name=name,
        life_s=item.ttl_s,
        byte_budget=item.byte_budget,
        bytes=(main.bytes if main else 0) + sidecar_bytes,
        sidecar_bytes=sidecar_bytes,
        extents=main.extents if main else 0,
        ages=age_bars(Counter(main.extents_by_age if main else {}), item.ttl_s),
        reuse=age_bars(by_age(reuse + ghost), item.ttl_s),
        returned=sum(ghost.values()),
        prompt_blocks=prompt["blocks"],
        hit_blocks=prompt["hit"],
    )


def by_age(intervals: Counter[str]) -> Counter[str]:
    """Quarter octaves of seconds in the age groups that pages show; a bucket counts where its middle lies."""
    found: Counter[str] = Counter()
    for bucket, blocks in intervals.items():
        low, high = interval_bounds(int(bucket))
        found[age_label(math.sqrt(max(low, 0.5) * high))] += blocks
    return found


def age_bars(counts: Counter[str], life_s: float) -> list[Bar]:
    """Every age group in order, those without anything too."""
    bounds = [0.0, *map(float, AGES_S)]
    labels = [*(age_label(bound) for bound in AGES_S), age_label(AGES_S[-1] + 1)]
    largest = max((counts[label] for label in labels), default=0)
    return [
        Bar(
            label.replace("<=", "≤"),
            counts[label],
            counts[label] / largest if largest else 0.0,
            beyond_life=low >= life_s,
        )
        for label, low in zip(labels, bounds, strict=True)
    ]


def _owners(sizes: dict[str, Size], names: dict[str, str]) -> list[Owner]:
    """Largest first."""
    found = [Owner(names.get(digest, digest[:12]), digest, digest in names, size) for digest, size in sizes.items()]
    return sorted(found, key=lambda owner: (-owner.size.bytes, owner.name))


def _evictions(read: Statistics) -> list[Eviction]:
    found = [Eviction(reason, sum(claims.values()), dict(claims)) for reason, claims in read.gone.items()]
    return sorted(found, key=lambda eviction: -eviction.blocks)


# --- tokens -------------------------------------------------------------------------------------------------------

COARSE: Final = timedelta(seconds=COARSE_S)
_SPLITS_KEPT_S: Final = 5.0


def splits(now: datetime | None = None) -> list[Split]:
    """Where prompt tokens came from, by window. Three queries."""
    at = now or timezone.now()
    hour = telemetry.history(Resolution.FINE, at - timedelta(hours=1), at)
    # Coarse periods come when they are over, and may still grow: what is younger is read from the fine ones.
    settled = period_start(at, COARSE_S) - 2 * COARSE
    coarse = telemetry.history(Resolution.COARSE, at - timedelta(days=1), settled)
    known = datetime.fromtimestamp(coarse[-1]["at"], UTC) + COARSE if coarse else at - timedelta(days=1)
    return [
        _split("Last hour", hour),
        _split("Last 24 hours", [*coarse, *telemetry.history(Resolution.FINE, known, at)]),
    ]


def _split(label: str, frames: list[dict[str, Any]]) -> Split:
    sums: Counter[str] = Counter()
    for frame in frames:
        sums.update({name: int(tokens) for name, tokens in frame["tokens"].items()})
    again = min(sums["recomputed"], sums["hit"])
    store = min(sums["store_hit"], sums["hit"] - again)
    return Split(
        label,
        pool=sums["hit"] - again - store,
        store=store,
        recomputed=again,
        miss=sums["miss"],
        short=min(sums["short"], sums["miss"]),
    )


class _Recent:
    """The splits of the last seconds: every open page asks for the same ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = -math.inf
        self._splits: list[Split] = []

    def get(self) -> list[Split]:
        with self._lock:
            if time.monotonic() - self._at > _SPLITS_KEPT_S:
                self._splits, self._at = splits(), time.monotonic()
            return self._splits

    def forget(self) -> None:
        with self._lock:
            self._at = -math.inf


recent_splits: Final = _Recent()


def contents_or_problem() -> tuple[Contents | None, str]:
    """For pages, which show the rest when the store is away."""
    try:
        return contents(), ""
    except StoreUnavailable as error:
        return None, str(error)
