"""While Valkey is away: this process's part of each limit, from its own memory, for a while.

A subject starts with the part of a minute that the whole outage may take, divided by the gateways there were; nothing
refills. So all gateways together admit at most what the limits allow in that time. Budgets are not served from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from controlplane.inference.limits_subjects import MINUTE_S, Limited, Windows, tightest
from controlplane.metering.limit_scripts import CONCURRENCY, OK, REQUESTS, TOKENS

ALLOWANCE_S: Final = 30.0


@dataclass(slots=True)
class _Left:
    requests: float
    tokens: float
    most_active: int
    active: int = 0


@dataclass(frozen=True, slots=True)
class Taken:
    """`code` of `limit_scripts`: OK where there was room; else `at` is the subject that has none."""

    code: int
    at: Limited | None
    windows: Windows


@dataclass(slots=True)
class LocalAllowance:
    """One outage. Made anew for the next."""

    gateways: int
    _subjects: dict[str, _Left] = field(default_factory=dict)

    def take(self, limited: tuple[Limited, ...], *, tokens: int) -> Taken:
        """Where every subject has room, it is taken from all of them."""
        found = [self._left(one) for one in limited]
        pairs = zip(limited, found, strict=True)
        code, at = next(((why, one) for one, left in pairs if (why := _lacks(one, left, tokens)) != OK), (OK, None))
        if code == OK:
            for left in found:
                left.requests -= 1
                left.tokens -= tokens
                left.active += 1
        return Taken(code, at, tightest(limited, [(int(left.requests), int(left.tokens)) for left in found]))

    def give_back(self, limited: tuple[Limited, ...]) -> None:
        """A request of the allowance ended."""
        for one in limited:
            self._left(one).active -= 1

    def _left(self, one: Limited) -> _Left:
        found = self._subjects.get(one.subject.name)
        if found is None:
            part = ALLOWANCE_S / MINUTE_S / max(self.gateways, 1)
            found = self._subjects[one.subject.name] = _Left(
                requests=(one.limits.requests_per_minute or 0) * part,
                tokens=(one.limits.tokens_per_minute or 0) * part,
                most_active=max((one.limits.concurrent_requests or 0) // max(self.gateways, 1), 1),
            )
        return found


def _lacks(one: Limited, left: _Left, tokens: int) -> int:
    """The code of what there is no room for, or OK."""
    limits = one.limits
    if limits.requests_per_minute is not None and left.requests < 1:
        return REQUESTS
    if limits.tokens_per_minute is not None and left.tokens < tokens:
        return TOKENS
    if limits.concurrent_requests is not None and left.active >= left.most_active:
        return CONCURRENCY
    return OK
