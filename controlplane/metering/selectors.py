"""Reads of the price book; what things cost is in `metering.pricing`."""

from __future__ import annotations

from django.db.models import QuerySet

from controlplane.metering.models import PriceBook, PriceEntry


def default_book() -> PriceBook | None:
    return PriceBook.objects.filter(is_default=True).first()


def price_entries(book: PriceBook) -> QuerySet[PriceEntry]:
    """Entries of a book: by model, oldest first."""
    return PriceEntry.objects.filter(book=book).order_by("model_name", "valid_from")
