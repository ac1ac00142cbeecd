"""The only writers of the price book."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import date, datetime

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from controlplane.accounts.permissions import Action, Principal, require
from controlplane.audit.services import record
from controlplane.metering.models import Holiday, PriceBook, PriceEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Micro-dollars per million tokens."""

    hit: int
    miss: int
    output: int
    peak_hit: int
    peak_miss: int
    peak_output: int


@transaction.atomic
def price_set(
    *, actor: Principal, book: PriceBook, model_name: str, rates: Rates, valid_from: datetime, reason: str = ""
) -> PriceEntry:
    """New prices of a model ("" is every model without its own) from `valid_from` on; the present ones end there.

    Raises ValidationError where that lies in the past: what was billed stays explained.
    """
    require(actor, Action.PRICES_MANAGE)
    book = PriceBook.objects.select_for_update().get(pk=book.pk)
    if valid_from < timezone.now():
        raise ValidationError({"valid_from": "prices of the past are not changed"})
    current = PriceEntry.objects.filter(book=book, model_name=model_name, valid_to__isnull=True).first()
    before = None
    if current is not None:
        before = {"entry": current.pk, "valid_from": current.valid_from.isoformat()}
        current.valid_to = valid_from
        current.full_clean()
        current.save(update_fields=["valid_to"])
    entry = PriceEntry(book=book, model_name=model_name, valid_from=valid_from, **asdict(rates))
    entry.full_clean()
    entry.save()
    record(
        actor=actor,
        action="price.set",
        target=f"price:{book.name}/{model_name or '*'}",
        before=before,
        after={"entry": entry.pk, "valid_from": valid_from.isoformat(), **asdict(rates)},
        reason=reason,
    )
    return entry


@transaction.atomic
def holiday_remove(*, actor: Principal, holiday: Holiday, reason: str = "") -> None:
    """The day has peak prices again. Raises ValidationError where it has begun."""
    require(actor, Action.PRICES_MANAGE)
    if holiday.day <= timezone.now().date():
        raise ValidationError({"day": "prices of the past are not changed"})
    record(
        actor=actor,
        action="holiday.remove",
        target=f"price:{holiday.book.name}",
        before={"day": holiday.day.isoformat(), "name": holiday.name},
        after=None,
        reason=reason,
    )
    holiday.delete()


@transaction.atomic
def holiday_add(*, actor: Principal, book: PriceBook, day: date, name: str, reason: str = "") -> Holiday:
    """A day without peak prices. Raises ValidationError where it is one already, or has begun."""
    require(actor, Action.PRICES_MANAGE)
    if day <= timezone.now().date():
        raise ValidationError({"day": "prices of the past are not changed"})
    holiday = Holiday(book=book, day=day, name=name)
    holiday.full_clean()
    holiday.save()
    record(
        actor=actor,
        action="holiday.add",
        target=f"price:{book.name}",
        before=None,
        after={"day": day.isoformat(), "name": name},
        reason=reason,
    )
    return holiday
