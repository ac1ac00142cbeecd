from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from controlplane.accounts.permissions import SYSTEM, PermissionRefused, Role
from controlplane.audit.models import AuditEvent
from controlplane.metering import selectors, services
from controlplane.metering.models import PriceBook, PriceEntry
from controlplane.metering.pricing import price_table
from controlplane.metering.services import Rates
from tests.controlplane.accounts.factories import user_principal

pytestmark = [pytest.mark.integration, pytest.mark.django_db]

RATES = Rates(hit=1, miss=2, output=3, peak_hit=4, peak_miss=5, peak_output=6)


@pytest.fixture
def book() -> PriceBook:
    found = selectors.default_book()
    assert found is not None
    return found


def test_the_book_that_comes_with_the_installation(django_assert_num_queries: object) -> None:
    with django_assert_num_queries(4):  # type: ignore[operator]
        off_peak = price_table().price_at("anything", datetime(2026, 11, 28, 1, tzinfo=UTC))
    assert (off_peak.hit, off_peak.miss, off_peak.output) == (3_000, 150_000, 600_000)
    peak = price_table().price_at("anything", datetime(2026, 11, 23, 6, tzinfo=UTC))
    assert (peak.hit, peak.miss, peak.output, peak.peak) == (6_000, 300_000, 1_200_000, True)
    assert not price_table().is_peak(datetime(2026, 2, 16, 6, tzinfo=UTC))  # Spring Festival


def test_a_new_price_ends_the_present_one(book: PriceBook) -> None:
    start = timezone.now() + timedelta(days=1)
    services.price_set(actor=SYSTEM, book=book, model_name="", rates=RATES, valid_from=start, reason="new list")
    old, new = selectors.price_entries(book)
    assert (old.valid_to, new.valid_from, new.valid_to) == (start, start, None)
    event = AuditEvent.objects.get(action="price.set")
    assert event.reason == "new list"
    assert event.after is not None
    assert event.after["miss"] == 2


def test_the_past_is_not_changed(book: PriceBook) -> None:
    with pytest.raises(ValidationError, match="past"):
        services.price_set(
            actor=SYSTEM, book=book, model_name="m", rates=RATES, valid_from=timezone.now() - timedelta(seconds=1)
        )
    with pytest.raises(ValidationError, match="past"):
        services.holiday_add(actor=SYSTEM, book=book, day=date(2020, 1, 1), name="x")


def test_periods_never_overlap(book: PriceBook) -> None:
    start = timezone.now() + timedelta(days=2)
    services.price_set(actor=SYSTEM, book=book, model_name="m", rates=RATES, valid_from=start)
    entry = PriceEntry.objects.get(model_name="m")
    entry.pk = None
    entry.valid_from = start + timedelta(days=1)
    with pytest.raises(ValidationError, match="valid in that period"):
        entry.full_clean()
    with pytest.raises(ValidationError):
        services.price_set(actor=SYSTEM, book=book, model_name="m", rates=RATES, valid_from=start - timedelta(days=1))


def test_holidays_have_no_peak(book: PriceBook) -> None:
    day = timezone.now().date() + timedelta(days=30)
    services.holiday_add(actor=SYSTEM, book=book, day=day, name="Founders' day")
    assert day in price_table().holidays
    with pytest.raises(ValidationError):
        services.holiday_add(actor=SYSTEM, book=book, day=day, name="again")


def test_operators_set_no_prices(book: PriceBook) -> None:
    with pytest.raises(PermissionRefused):
        services.price_set(
            actor=user_principal((Role.OPERATOR, None)),
            book=book,
            model_name="",
            rates=RATES,
            valid_from=timezone.now() + timedelta(days=1),
        )
