"""The price book: prices with their validity, peak windows and holidays. All of it is data."""

from __future__ import annotations

from typing import ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator
from django.db import models


class PriceBook(models.Model):
    """One list of prices in US dollars. A model without an entry of its own has the entry for every model ("")."""

    name = models.SlugField(max_length=63, unique=True)
    description = models.CharField(max_length=500, blank=True)
    is_default = models.BooleanField(default=False)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["is_default"], condition=models.Q(is_default=True), name="metering_one_default_book"
            )
        ]

    def __str__(self) -> str:
        return self.name


class PriceEntry(models.Model):
    """Prices of one model from `valid_from` until before `valid_to`, in micro-dollars per million tokens."""

    book = models.ForeignKey(PriceBook, on_delete=models.CASCADE, related_name="entries")
    model_name = models.CharField(max_length=200, blank=True)
    hit = models.PositiveBigIntegerField()
    miss = models.PositiveBigIntegerField()
    output = models.PositiveBigIntegerField()
    peak_hit = models.PositiveBigIntegerField()
    peak_miss = models.PositiveBigIntegerField()
    peak_output = models.PositiveBigIntegerField()
    valid_from = models.DateTimeField()
    valid_to = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("book_id", "model_name", "valid_from")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["book", "model_name", "valid_from"], name="metering_entry_start"),
            models.CheckConstraint(
                condition=models.Q(valid_to__isnull=True) | models.Q(valid_to__gt=models.F("valid_from")),
                name="metering_entry_validity",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model_name or '*'} from {self.valid_from:%Y-%m-%d %H:%M}"

    def clean(self) -> None:
        """Validity periods of one model in one book never overlap."""
        others = PriceEntry.objects.filter(book=self.book, model_name=self.model_name).exclude(pk=self.pk)
        if self.valid_to is not None:
            others = others.filter(valid_from__lt=self.valid_to)
        if others.filter(models.Q(valid_to__isnull=True) | models.Q(valid_to__gt=self.valid_from)).exists():
            raise ValidationError("another price of this model is valid in that period")


class PeakWindow(models.Model):
    """Peak prices apply from `start` until before `end` on the weekdays of the mask, in UTC, except on holidays."""

    book = models.ForeignKey(PriceBook, on_delete=models.CASCADE, related_name="peak_windows")
    weekdays = models.PositiveSmallIntegerField(validators=[MaxValueValidator(127)])
    """Bit 0 is Monday, bit 6 Sunday."""
    start = models.TimeField()
    end = models.TimeField()

    class Meta:
        ordering = ("book_id", "start")
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(end__gt=models.F("start")), name="metering_window_order")
        ]

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M} UTC"


class Holiday(models.Model):
    """A day (in UTC) without peak prices."""

    book = models.ForeignKey(PriceBook, on_delete=models.CASCADE, related_name="holidays")
    day = models.DateField()
    name = models.CharField(max_length=100)

    class Meta:
        ordering = ("book_id", "day")
        constraints: ClassVar = [models.UniqueConstraint(fields=["book", "day"], name="metering_holiday_once")]

    def __str__(self) -> str:
        return f"{self.day} {self.name}"
