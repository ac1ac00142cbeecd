"""The price book to start from: DeepSeek's public list for V4.1-Flash, for every model without prices of its own."""

import datetime

from django.db import migrations

MONDAY_TO_FRIDAY = 0b0011111
PEAK = [(datetime.time(1), datetime.time(4)), (datetime.time(6), datetime.time(10))]
# Public holidays of China as announced for 2026: (first day, days, name). Peak hours lie within one Chinese day.
HOLIDAYS = [
    (datetime.date(2026, 1, 1), 3, "New Year"),
    (datetime.date(2026, 2, 15), 9, "Spring Festival"),
    (datetime.date(2026, 4, 4), 3, "Qingming"),
    (datetime.date(2026, 5, 1), 5, "Labour Day"),
    (datetime.date(2026, 6, 19), 3, "Dragon Boat"),
    (datetime.date(2026, 9, 25), 3, "Mid-Autumn"),
    (datetime.date(2026, 10, 1), 7, "National Day"),
]


def forward(apps, schema_editor):
    book = apps.get_model("metering", "PriceBook").objects.create(
        name="list", description="DeepSeek's public list for V4.1-Flash, as a template", is_default=True
    )
    apps.get_model("metering", "PriceEntry").objects.create(
        book=book,
        model_name="",
        hit=3_000,
        miss=150_000,
        output=600_000,
        peak_hit=6_000,
        peak_miss=300_000,
        peak_output=1_200_000,
        valid_from=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    )
    window = apps.get_model("metering", "PeakWindow")
    for start, end in PEAK:
        window.objects.create(book=book, weekdays=MONDAY_TO_FRIDAY, start=start, end=end)
    holiday = apps.get_model("metering", "Holiday")
    for first, days, name in HOLIDAYS:
        for offset in range(days):
            holiday.objects.create(book=book, day=first + datetime.timedelta(days=offset), name=name)


class Migration(migrations.Migration):
    dependencies = [("metering", "0001_initial")]
    operations = [migrations.RunPython(forward, migrations.RunPython.noop)]
