"""Picks the workers of a request: a prefill and a decode worker of one revision, or one worker in role `both`.

Least predicted work among two random candidates and those that served the prompt's beginning lately. Loads are
up to a second old, hence the random pair: all gateways must not choose the same worker. The full price model of
design section 6 replaces `_prefill_cost` and `_decode_cost`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from controlplane.inference.affinity import Prefix, PrefixAffinity, prefixes
from controlplane.inference.connection import Connection
from workers.protocol import Address, Role

DECODE_SLOT_TOKENS = 64
"""What one more running request on a decode worker is worth in prompt tokens, when load is weighed against reuse."""


class NoWorkers(Exception):
    """No usable pair; the message says what there is instead."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Where a request runs. `decode` is None in role `both`."""

    prefill: Connection
    decode: Connection | None

    @property
    def revision(self) -> str:
        return self.prefill.revision

    def addresses(self) -> list[Address]:
        return [self.prefill.address] + ([self.decode.address] if self.decode else [])


class Router:
    """`connections` gives all that the gateway knows; the router keeps only what it routed."""

    def __init__(self, connections: Callable[[], Iterable[Connection]], *, rng: random.Random | None = None) -> None:
        self._connections = connections
        self._affinity = PrefixAffinity()
        self._rng = rng or random.Random()  # noqa: S311 - load spreading

    def usable(self, deployment: str) -> dict[str, list[Connection]]:
        """Usable workers of a deployment by revision, only of revisions that can serve."""
        by_revision: dict[str, list[Connection]] = {}
        for connection in self._connections():
            if connection.lease.deployment == deployment and connection.usable:
                by_revision.setdefault(connection.revision, []).append(connection)
        return {revision: found for revision, found in by_revision.items() if _complete(found)}

    def pick(
        self,
        *,
        deployment: str,
        revision: str,
        tokens: Sequence[int],
        salt: bytes,
        exclude: Iterable[Address] = (),
    ) -> Pair:
        """A pair of `revision` where there is one, else of any other. Raises NoWorkers."""
        excluded = set(exclude)
        candidates = {
            name: left
            for name, found in self.usable(deployment).items()
            if _complete(left := [connection for connection in found if connection.address not in excluded])
        }
        if not candidates:
            raise NoWorkers(self.describe(deployment))
        chosen = revision if revision in candidates else max(candidates, key=lambda name: len(candidates[name]))
        found = prefixes(tokens, chosen.encode() + b"\0" + salt)
        pair = self._pair(candidates[chosen], len(tokens), found)
        self._affinity.record(found, pair.addresses())
        return pair

    def _pair(self, connections: list[Connection], prompt: int, found: Sequence[Prefix]) -> Pair:
        held = self._affinity.matched(found)
        decoders = [connection for connection in connections if connection.role is Role.DECODE]
        starters = [
            connection
            for connection in connections
            if connection.role is Role.BOTH or (connection.role is Role.PREFILL and decoders)
        ]
        first = self._cheapest(starters, held, lambda one: _prefill_cost(one, prompt - held.get(one.address, 0)))
        if first.role is Role.BOTH:
            return Pair(first, None)
        return Pair(first, self._cheapest(decoders, held, lambda one: _decode_cost(one, held.get(one.address, 0))))

    def _cheapest(
        self, connections: list[Connection], held: dict[Address, int], cost: Callable[[Connection], float]
    ) -> Connection:
        candidates = self._rng.sample(connections, min(2, len(connections)))
        candidates += [connection for connection in connections if connection.address in held]
        return min(candidates, key=cost)

    def expects(self, deployment: str) -> bool:
        """Whether workers of a deployment are known at all: one that died a moment ago is on its way back."""
        return any(connection.lease.deployment == deployment for connection in self._connections())

    def describe(self, deployment: str) -> str:
        """What the workers of a deployment are doing, for errors and readiness."""
        said = sorted(
            f"{connection.worker} ({connection.role}) is {connection.state}"
            + (f": {connection.error}" if connection.error else "")
            for connection in self._connections()
            if connection.lease.deployment == deployment
        )
        return "; ".join(said) if said else "no worker has announced itself"


def _complete(connections: Iterable[Connection]) -> bool:
    roles = {connection.role for connection in connections}
    return Role.BOTH in roles or {Role.PREFILL, Role.DECODE} <= roles


def _prefill_cost(connection: Connection, new_tokens: int) -> float:
    """Prompt tokens to be computed before this request's first token would be there."""
    status = connection.status
    waiting = status.waiting_tokens if status else 0
    running = status.running if status else 0
    return waiting + connection.pending_tokens + max(new_tokens, 1) + running


def _decode_cost(connection: Connection, held_tokens: int) -> float:
    """Load of a decode worker in prompt tokens, less what needs no transfer."""
    status = connection.status
    busy = max(connection.requests, status.running + status.waiting if status else 0)
    return busy * DECODE_SLOT_TOKENS - held_tokens
