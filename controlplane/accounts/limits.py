"""How much a key or a tenant may use: the same four limits for both, and both apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.core.validators import MinValueValidator
from django.db import models

FIELDS: Final = ("requests_per_minute", "tokens_per_minute", "concurrent_requests", "budget_micro_usd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """None is no limit. The budget is micro-dollars per calendar month in UTC; 0 lets nothing be spent."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and output tokens together."""
    concurrent_requests: int | None = None
    budget_micro_usd: int | None = None

    def __bool__(self) -> bool:
        """Whether anything is limited."""
        return self != NO_LIMITS

    def as_dict(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in FIELDS}


NO_LIMITS: Final = Limits()


class Limited(models.Model):
    """The columns of `Limits`."""

    requests_per_minute = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    tokens_per_minute = models.PositiveBigIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    concurrent_requests = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    budget_micro_usd = models.PositiveBigIntegerField(null=True, blank=True)

    class Meta:
        abstract = True

    @property
    def limits(self) -> Limits:
        return Limits(**{name: getattr(self, name) for name in FIELDS})

    def apply_limits(self, limits: Limits) -> None:
        for name, value in limits.as_dict().items():
            setattr(self, name, value)


def limits_changed(limits: Limits, changes: Mapping[str, Any]) -> Limits:
    """`limits` with those of `changes` that name one; a None takes that limit away."""
    values: dict[str, int | None] = limits.as_dict()
    values.update((name, changes[name]) for name in FIELDS if name in changes)
    return Limits(**values)


def limits_after(before: Limits, wanted: Limits | Mapping[str, int | None]) -> Limits:
    """`wanted` whole, or changes of single limits on top of `before`."""
    return wanted if isinstance(wanted, Limits) else limits_changed(before, wanted)


def looser(limits: Limits, than: Limits) -> list[str]:
    """Names of the limits that let more through than those of `than`."""
    mine, other = limits.as_dict(), than.as_dict()
    return [
        name for name in FIELDS if (most := other[name]) is not None and ((value := mine[name]) is None or value > most)
    ]
