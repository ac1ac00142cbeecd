"""Retention as the store sees it: one immutable, versioned snapshot, evaluated at every lookup and by the sweeper.

The control plane owns policies (models, rights, audit) and publishes snapshots of them (`policy_feed`). Nothing here
keeps state: two processes that hold the same version agree on what lives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

PIN: Final = "!pin"
"""Claim of pinned prefixes: it never expires and no eviction touches it."""
_SIDECAR: Final = "/sidecar"
_INNER: Final = "/inner/sidecar"

MAX_TTL_S: Final = 10 * 366 * 86_400.0
MAX_CLASSES: Final = 64
MAX_PINS: Final = 10_000
DAY_S: Final = 86_400.0


class PolicyError(ValueError):
    """A policy that must not be published; the message lists every problem."""


class SidecarRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which window snapshots a class keeps: bytes against compute, never correctness."""

    keep: Literal["none", "unit_end", "all"] = "unit_end"
    """Where a unit ends (end of an input or output, a common prefix), or also inside: every block whose rows a model
    still holds when a step ends."""
    ttl_s: float | None = None
    """Life of sidecars where it is shorter than that of the class."""


class RetentionClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    ttl_s: float
    """Seconds since the last use in this class."""
    byte_budget: int | None = None
    """Bytes that this class may claim, sidecars included; None: bounded by the total alone."""
    sidecars: SidecarRule = SidecarRule()
    priority: int = 0
    """When the store is full, claims of lower priority go first."""


class AssignmentRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Puts requests for which every condition that is set holds into a class; the first rule that holds wins."""

    retention_class: str
    key_id: str | None = None
    header: tuple[str, str] | None = None
    """Name (any case) and value."""
    tools: bool | None = None


class Pin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prefix that stays: the block `tip` (hex) and all blocks before it."""

    name: str
    tip: str


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    classes: tuple[RetentionClass, ...]
    fallback: str = "chat"
    """Class of requests that no rule claims, and of claims whose class no longer exists."""
    total_bytes: int | None = None
    low_watermark: float = 0.95
    """Evictions go down to this share of the exceeded budget."""
    rules: tuple[AssignmentRule, ...] = ()
    pins: tuple[Pin, ...] = ()

    def find(self, name: str) -> RetentionClass:
        """The class of that name, or the fallback."""
        fallback = None
        for item in self.classes:
            if item.name == name:
                return item
            if item.name == self.fallback:
                fallback = item
        if fallback is None:
            raise PolicyError(f"the fallback class {self.fallback!r} does not exist")
        return fallback

    def ttl_us(self, claim: str) -> float:
        """Life of a claim in microseconds; a claim is a class's name, a class's sidecars or a pin."""
        if claim == PIN:
            return float("inf")
        if claim.endswith(_SIDECAR):
            owner = self.find(class_of(claim))
            keep = owner.sidecars.keep
            if keep == "none" or (keep == "unit_end" and claim.endswith(_INNER)):
                return -1.0
            own = owner.sidecars.ttl_s
            return 1e6 * (owner.ttl_s if own is None else min(own, owner.ttl_s))
        return 1e6 * self.find(claim).ttl_s

    def live(self, claims: Mapping[str, int], now_us: int) -> bool:
        """Whether any of the claims (name to last use in microseconds) still holds."""
        return any(now_us - last <= self.ttl_us(claim) for claim, last in claims.items())

    def classify(self, *, key_id: str, headers: Mapping[str, str], tools: bool) -> str:
        """Retention class of a request. Header names in `headers` are lower case."""
        for rule in self.rules:
            if rule.key_id is not None and rule.key_id != key_id:
                continue
            if rule.header is not None and headers.get(rule.header[0].lower()) != rule.header[1]:
                continue
            if rule.tools is not None and rule.tools != tools:
                continue
            return rule.retention_class
        return self.fallback

    def check(self, *, disk_bytes: int | None = None) -> None:
        """Raise PolicyError with every reason why this policy must not be published."""
        problems = [*self._class_problems(), *self._pin_problems()]
        names = {item.name for item in self.classes}
        if self.fallback not in names:
            problems.append(f"the fallback class {self.fallback!r} does not exist")
        unknown = {rule.retention_class for rule in self.rules} - names
        problems += [f"a rule names the unknown class {name!r}" for name in sorted(unknown)]
        if self.version < 1:
            problems.append("versions start at 1")
        if not 0.5 <= self.low_watermark <= 1:
            problems.append("the low watermark is a share between 0.5 and 1")
        if self.total_bytes is not None:
            if self.total_bytes <= 0:
                problems.append("the total budget must be positive")
            elif disk_bytes is not None and self.total_bytes > disk_bytes:
                problems.append(
                    f"the total budget ({self.total_bytes} bytes) is more than the disk's {disk_bytes} bytes"
                )
        limit = self.total_bytes if self.total_bytes is not None else disk_bytes
        problems += [
            f"class {item.name}: its budget is more than the store may hold ({limit} bytes)"
            for item in self.classes
            if limit is not None and item.byte_budget is not None and item.byte_budget > limit
        ]
        if problems:
            raise PolicyError("; ".join(problems))

    def _class_problems(self) -> list[str]:
        problems = []
        if not 1 <= len(self.classes) <= MAX_CLASSES:
            problems.append(f"between 1 and {MAX_CLASSES} classes are possible")
        if len({item.name for item in self.classes}) != len(self.classes):
            problems.append("two classes have the same name")
        for item in self.classes:
            if not item.name or not item.name.replace("-", "").replace("_", "").isalnum() or len(item.name) > 64:
                problems.append(f"class {item.name!r}: names are up to 64 letters, digits, - and _")
            if not 0 <= item.ttl_s <= MAX_TTL_S:  # also refuses nan
                problems.append(f"class {item.name}: a life is between 0 seconds and ten years")
            if item.byte_budget is not None and item.byte_budget < 0:
                problems.append(f"class {item.name}: a budget is not negative")
            if item.sidecars.ttl_s is not None and not 0 <= item.sidecars.ttl_s <= MAX_TTL_S:
                problems.append(f"class {item.name}: a sidecar's life is between 0 seconds and ten years")
        return problems

    def _pin_problems(self) -> list[str]:
        problems = []
        if len(self.pins) > MAX_PINS:
            problems.append(f"at most {MAX_PINS} pins are possible")
        for pin in self.pins:
            if len(pin.tip) != 64 or not all(c in "0123456789abcdef" for c in pin.tip):
                problems.append(f"pin {pin.name!r}: the tip is a block hash of 64 lower-case hex digits")
        return problems


DEFAULT_POLICY: Final = RetentionPolicy(
    version=0,
    classes=(
        RetentionClass(name="agent", ttl_s=3 * DAY_S),
        RetentionClass(name="chat", ttl_s=7 * DAY_S),
    ),
    rules=(AssignmentRule(retention_class="agent", tools=True),),
)
"""Agent traffic 72 hours, chat 168 hours; version 0: built in, never published, replaced by the first that is."""


def sidecar_claim(retention_class: str, *, unit_end: bool) -> str:
    """Claim of a class on a sidecar: those at a unit's end and those inside one have lives of their own."""
    return retention_class + (_SIDECAR if unit_end else _INNER)


def class_of(claim: str) -> str:
    """The class that holds a claim."""
    return claim.removesuffix(_INNER).removesuffix(_SIDECAR)


def claims_of_class(retention_class: str) -> list[str]:
    """Every claim that a class can hold."""
    return [retention_class, retention_class + _SIDECAR, retention_class + _INNER]


def encode(policy: RetentionPolicy) -> bytes:
    return msgspec.json.encode(policy)


def decode(raw: bytes) -> RetentionPolicy:
    """Raises PolicyError when the bytes are no policy of this release."""
    try:
        return msgspec.json.decode(raw, type=RetentionPolicy)
    except msgspec.MsgspecError as error:
        raise PolicyError(f"not a retention policy: {error}") from error
