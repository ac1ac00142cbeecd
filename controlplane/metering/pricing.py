"""What tokens cost: exact integers, at the price of the instant a request was admitted.

Prices are micro-dollars per million tokens, amounts are 10^-12 dollar (pico-dollars), and one times the other is exact:
10^-6 dollar / 10^6 tokens x tokens = 10^-12 dollar x tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from typing import Final, NewType

from controlplane.metering.models import Holiday, PeakWindow, PriceBook, PriceEntry

PicoDollars = NewType("PicoDollars", int)
PICO_PER_DOLLAR: Final = 10**12


class NoPrice(Exception):
    """The book has no price for this model at this instant; add an entry, or one for every model ("")."""


@dataclass(frozen=True, slots=True)
class Price:
    """Micro-dollars per million tokens of each class."""

    hit: int
    miss: int
    output: int
    peak: bool
    entry_id: int
    """The row of the price book it was read from."""


@dataclass(frozen=True, slots=True)
class Window:
    weekdays: int
    start: time
    end: time

    def covers(self, instant: datetime) -> bool:
        """`instant` in UTC; the start belongs to the window, the end does not."""
        return bool(self.weekdays >> instant.weekday() & 1) and self.start <= instant.time() < self.end


@dataclass(frozen=True, slots=True)
class Entry:
    entry_id: int
    model: str
    off_peak: Price
    peak: Price
    valid_from: datetime
    valid_to: datetime | None

    def valid(self, instant: datetime) -> bool:
        return self.valid_from <= instant and (self.valid_to is None or instant < self.valid_to)


@dataclass(frozen=True, slots=True)
class PriceTable:
    """A price book in memory. Pure: the same question always has the same answer."""

    entries: tuple[Entry, ...] = ()
    windows: tuple[Window, ...] = ()
    holidays: frozenset[date] = field(default_factory=frozenset)

    def is_peak(self, instant: datetime) -> bool:
        """Raises ValueError for an instant without a time zone."""
        moment = _utc(instant)
        return moment.date() not in self.holidays and any(window.covers(moment) for window in self.windows)

    def price_at(self, model: str, instant: datetime) -> Price:
        """The model's own price, or the one for every model. Raises NoPrice, and ValueError without a time zone."""
        moment = _utc(instant)
        for name in (model, ""):
            for entry in self.entries:
                if entry.model == name and entry.valid(moment):
                    return entry.peak if self.is_peak(moment) else entry.off_peak
        raise NoPrice(f"no price for {model} at {moment:%Y-%m-%d %H:%M} UTC")


def _utc(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise ValueError("an instant needs a time zone")
    return instant.astimezone(UTC)


def price_table(book: str | None = None) -> PriceTable:
    """The default price book, or one by name. Four queries; keep it for some seconds where you ask often."""
    found = PriceBook.objects.filter(name=book) if book is not None else PriceBook.objects.filter(is_default=True)
    row = found.first()
    if row is None:
        return PriceTable()
    return PriceTable(
        entries=tuple(_entries(row.entries.all())),
        windows=tuple(_windows(row.peak_windows.all())),
        holidays=frozenset(_days(row.holidays.all())),
    )


def _entries(rows: Iterable[PriceEntry]) -> Iterable[Entry]:
    for row in rows:
        yield Entry(
            entry_id=row.pk,
            model=row.model_name,
            off_peak=Price(hit=row.hit, miss=row.miss, output=row.output, peak=False, entry_id=row.pk),
            peak=Price(hit=row.peak_hit, miss=row.peak_miss, output=row.peak_output, peak=True, entry_id=row.pk),
            valid_from=row.valid_from,
            valid_to=row.valid_to,
        )


def _windows(rows: Iterable[PeakWindow]) -> Iterable[Window]:
    return (Window(weekdays=row.weekdays, start=row.start, end=row.end) for row in rows)


def _days(rows: Iterable[Holiday]) -> Iterable[date]:
    return (row.day for row in rows)


def amount_pico(price: Price, hit: int, miss: int, output: int) -> PicoDollars:
    """Exact amount of disjoint token classes. Raises ValueError for a negative count."""
    if min(hit, miss, output) < 0:
        raise ValueError("token counts are not negative")
    return PicoDollars(hit * price.hit + miss * price.miss + output * price.output)
