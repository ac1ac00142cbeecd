"""Reads of the price book; what things cost is in `metering.pricing`."""

from __future__ import annotations

from calendar import day_abbr
from datetime import date

from django.db.models import QuerySet

from controlplane.metering.models import Holiday, PeakWindow, PriceBook, PriceEntry


def default_book() -> PriceBook | None:
    return PriceBook.objects.filter(is_default=True).first()


def price_entries(book: PriceBook) -> QuerySet[PriceEntry]:
    """Entries of a book: by model, oldest first."""
    return PriceEntry.objects.filter(book=book).order_by("model_name", "valid_from")


def weekday_names(window: PeakWindow) -> list[str]:
    """Short names, Monday first."""
    return [day_abbr[day] for day in range(7) if window.weekdays >> day & 1]


def holidays(book: PriceBook, *, since: date) -> QuerySet[Holiday]:
    """From that day on, in order."""
    return Holiday.objects.filter(book=book, day__gte=since).order_by("day")
