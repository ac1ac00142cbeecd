"""Whose limits a request counts against, and what was left of them: the same values for Valkey and local allowance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from controlplane.accounts.limits import Limits
from controlplane.accounts.permissions import Principal, PrincipalKind
from controlplane.metering.events import Subject

MINUTE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Limited:
    """A subject and its limits."""

    subject: Subject
    limits: Limits

    @property
    def budget_nano(self) -> int | None:
        micro = self.limits.budget_micro_usd
        return None if micro is None else micro * 1000


def limited_subjects(principal: Principal) -> tuple[Limited, ...]:
    """The key's and the tenant's, as far as they have limits: most requests of most installations have none."""
    found = []
    if principal.kind is PrincipalKind.KEY and principal.limits:
        found.append(_limited(f"k:{principal.root_key}", principal.limits))
    if principal.tenant is not None and principal.tenant_limits:
        found.append(_limited(f"t:{principal.tenant}", principal.tenant_limits))
    return tuple(found)


def _limited(name: str, limits: Limits) -> Limited:
    return Limited(
        Subject(
            name,
            tokens_per_minute=limits.tokens_per_minute,
            requests_per_minute=limits.requests_per_minute,
            budgeted=limits.budget_micro_usd is not None,
        ),
        limits,
    )


@dataclass(frozen=True, slots=True)
class Window:
    """One limit per minute as the headers show it. `reset_s`: until all of it is there again."""

    limit: int
    remaining: int

    @property
    def reset_s(self) -> float:
        return max(self.limit - self.remaining, 0) * MINUTE_S / self.limit


@dataclass(frozen=True, slots=True)
class Windows:
    """The tightest limit of each kind."""

    requests: Window | None = None
    tokens: Window | None = None


NO_WINDOWS: Final = Windows()


def tightest(limited: tuple[Limited, ...], left: list[tuple[int, int]]) -> Windows:
    """`left` has (requests, tokens) of each subject."""
    requests, tokens = [], []
    for one, (of_requests, of_tokens) in zip(limited, left, strict=True):
        if one.limits.requests_per_minute is not None:
            requests.append(Window(one.limits.requests_per_minute, max(of_requests, 0)))
        if one.limits.tokens_per_minute is not None:
            tokens.append(Window(one.limits.tokens_per_minute, max(of_tokens, 0)))
    return Windows(
        min(requests, key=lambda window: window.remaining, default=None),
        min(tokens, key=lambda window: window.remaining, default=None),
    )
