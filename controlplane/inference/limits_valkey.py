"""Reserving in Valkey: one script, one round trip, and a quick word on whether the server is there at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Final

import redis
import redis.asyncio

from controlplane.inference.limits_subjects import Limited, Windows, tightest
from controlplane.metering import limit_scripts
from controlplane.metering.limit_scripts import gateway_key, subject_keys
from controlplane.metering.reservations import Call, Reservation, encode_reservation

WAIT_S: Final = 1.0
"""A server that answers no reservation for so long is away."""
PROBE_EVERY_S: Final = 0.5


class ValkeyAway(Exception):
    """Nothing could be reserved; whether it was is not known."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`code` of `limit_scripts`; `at` is the subject that refused."""

    code: int
    at: Limited | None
    retry_after_s: float
    windows: Windows


class RemoteLimits:
    """`away_s` says for how long the server has been away; one request at a time finds out whether it is back."""

    def __init__(self, client: redis.asyncio.Redis, *, journal: str, ttl_s: float) -> None:
        self._reserve = client.register_script(limit_scripts.RESERVE)
        self._journal = journal
        self._ttl_ms = int(ttl_s * 1000)
        self._away_since: float | None = None
        self._probed = 0.0

    @property
    def away_s(self) -> float:
        return 0.0 if self._away_since is None else time.monotonic() - self._away_since

    async def reserve(
        self, request_id: str, limited: tuple[Limited, ...], *, tokens: int, cost_nano: int, month: str
    ) -> Verdict:
        """All subjects together or none. Raises ValkeyAway."""
        now = time.monotonic()
        if self._away_since is not None:
            if now - self._probed < PROBE_EVERY_S:
                raise ValkeyAway("the server was away a moment ago")
            self._probed = now
        call = self._call(request_id, limited, tokens, cost_nano, month)
        try:
            reply = await _within(self._reserve(keys=call.keys, args=call.arguments))
        except (redis.RedisError, OSError, TimeoutError) as error:
            if self._away_since is None:
                self._away_since = self._probed = now
            raise ValkeyAway(str(error)) from error
        self._away_since = None
        code, at, wait_ms, *left = (int(value) for value in reply)
        pairs = list(zip(left[::2], left[1::2], strict=True))
        return Verdict(code, limited[at - 1] if at else None, wait_ms / 1000, tightest(limited, pairs))

    def _call(self, request_id: str, limited: tuple[Limited, ...], tokens: int, cost_nano: int, month: str) -> Call:
        subjects = [one.subject for one in limited]
        undo = encode_reservation(Reservation(month, tokens, subjects))
        arguments: list[int | str | bytes] = [request_id, self._ttl_ms, tokens, cost_nano, undo]
        for one in limited:
            for limit in (
                one.limits.requests_per_minute,
                one.limits.tokens_per_minute,
                one.limits.concurrent_requests,
                one.budget_nano,
            ):
                arguments.append(-1 if limit is None else limit)
        names = [subject.name for subject in subjects]
        return Call([*subject_keys(names, month), gateway_key(self._journal)], arguments)


async def _within(work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(WAIT_S):
        return await work
