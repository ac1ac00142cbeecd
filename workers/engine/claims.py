"""Who uses the pool's published blocks: which retention classes, each since when, and whose they are.

The pool follows the same policy as the KV store (decision 0009): a class's use of a block is a claim that ends a life
after its last use, and a block is findable until its last claim ends. A block that a request holds is in use and so
alive. A purge of a tenant or a class takes effect at once, whoever holds the block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

Life = Callable[[str], float]
"""Seconds that blocks live after their last use in a class, by its name."""


class Scope(NamedTuple):
    """On whose behalf a request uses blocks."""

    retention_class: str
    tenant: str
    """Public name of the tenant's salt (`workers.kvstore.extent.salt_id`)."""


NOBODY: Final = Scope("", "")
"""Claims nothing: such a block stays until the pool needs its room."""


class Claims:
    """Slots by class in the order of their last use there, so that looking for what expired costs what it finds."""

    def __init__(self) -> None:
        self._last: dict[str, OrderedDict[int, float]] = {}
        self._tenants: dict[int, str] = {}

    def use(self, slot: int, scope: Scope, now: float) -> None:
        if not scope.retention_class:
            return
        claims = self._last.setdefault(scope.retention_class, OrderedDict())
        claims[slot] = now
        claims.move_to_end(slot)
        self._tenants[slot] = scope.tenant

    def lapsed(self, slot: int) -> bool:
        """Whether it was claimed, and its last claim has ended."""
        return slot in self._tenants and not any(slot in claims for claims in self._last.values())

    def drop(self, slot: int) -> None:
        """The slot's block ceased to be."""
        for claims in self._last.values():
            claims.pop(slot, None)
        self._tenants.pop(slot, None)

    def end_old(self, life: Life, now: float) -> list[int]:
        """End claims that are older than their class's life; the slots that lost their last one."""
        ended: list[int] = []
        for name, claims in self._last.items():
            limit = life(name)
            while claims:
                slot, last = next(iter(claims.items()))
                if now - last <= limit:
                    break
                del claims[slot]
                ended.append(slot)
        return self._unclaimed(ended)

    def end_class(self, retention_class: str) -> list[int]:
        """End every claim of a class; the slots that lost their last one."""
        return self._unclaimed(list(self._last.pop(retention_class, ())))

    def of_tenant(self, tenant: str) -> list[int]:
        return [slot for slot, owner in self._tenants.items() if owner == tenant]

    def _unclaimed(self, slots: list[int]) -> list[int]:
        return [slot for slot in slots if not any(slot in claims for claims in self._last.values())]
