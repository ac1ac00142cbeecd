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


class LedgerEntry(models.Model):
    """One admitted request: what it used and what it costs. Inserted once, never changed; names, not foreign keys, so
    that it outlives tenants and keys.
    """

    request_id = models.CharField(max_length=64, unique=True)
    tenant = models.CharField(max_length=63)
    caller = models.CharField(max_length=200)
    """The key by its prefix, or the user's name."""
    key_id = models.BigIntegerField(default=0)
    """0: a signed-in user."""
    root_key = models.BigIntegerField(default=0)
    model_name = models.CharField(max_length=200)
    deployment = models.CharField(max_length=200)
    gateway = models.CharField(max_length=200)
    admitted_at = models.DateTimeField()
    ended_at = models.DateTimeField()
    outcome = models.CharField(max_length=64)
    pool_hit_tokens = models.PositiveBigIntegerField()
    store_hit_tokens = models.PositiveBigIntegerField()
    miss_tokens = models.PositiveBigIntegerField()
    output_tokens = models.PositiveBigIntegerField()
    hit_price = models.PositiveBigIntegerField()
    """Micro-dollars per million tokens, as the three prices are."""
    miss_price = models.PositiveBigIntegerField()
    output_price = models.PositiveBigIntegerField()
    peak = models.BooleanField()
    price_entry = models.BigIntegerField(null=True)
    """Row of the price book; null where the book had no price: such requests cost nothing."""
    amount_pico = models.DecimalField(max_digits=30, decimal_places=0)
    """10^-12 dollars: the token classes times their prices, exactly."""

    class Meta:
        ordering = ("-admitted_at", "-id")
        indexes: ClassVar = [
            models.Index(fields=["admitted_at", "id"], name="metering_ledger_time"),
            models.Index(fields=["tenant", "admitted_at", "id"], name="metering_ledger_tenant"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(
                    amount_pico=(models.F("pool_hit_tokens") + models.F("store_hit_tokens")) * models.F("hit_price")
                    + models.F("miss_tokens") * models.F("miss_price")
                    + models.F("output_tokens") * models.F("output_price")
                ),
                name="metering_ledger_exact",
            )
        ]

    def __str__(self) -> str:
        return self.request_id


class UsageBucket(models.Model):
    """Sums of the ledger over a quarter of an hour by admission: every time zone's hours are made of such quarters."""

    start = models.DateTimeField()
    tenant = models.CharField(max_length=63)
    caller = models.CharField(max_length=200)
    key_id = models.BigIntegerField(default=0)
    root_key = models.BigIntegerField(default=0)
    model_name = models.CharField(max_length=200)
    requests = models.PositiveBigIntegerField()
    pool_hit_tokens = models.PositiveBigIntegerField()
    store_hit_tokens = models.PositiveBigIntegerField()
    miss_tokens = models.PositiveBigIntegerField()
    output_tokens = models.PositiveBigIntegerField()
    amount_pico = models.DecimalField(max_digits=30, decimal_places=0)

    class Meta:
        ordering = ("start", "tenant")
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["start", "tenant", "caller", "key_id", "root_key", "model_name"], name="metering_bucket_once"
            )
        ]
        indexes: ClassVar = [
            models.Index(fields=["tenant", "start"], name="metering_bucket_tenant"),
            models.Index(fields=["root_key", "start"], name="metering_bucket_key"),
        ]

    def __str__(self) -> str:
        return f"{self.start:%Y-%m-%d %H:%M} {self.tenant} {self.model_name}"


class WorkerRecord(models.Model):
    """What one worker says of one attempt at a request: kept for a month, to compare with the ledger."""

    attempt_id = models.CharField(max_length=80)
    """The request id, with the number of the choice (`.1`) and of the retry (`.retry1`) where there is one."""
    request_id = models.CharField(max_length=64)
    worker = models.CharField(max_length=200)
    epoch = models.BigIntegerField()
    way = models.CharField(max_length=16)
    outcome = models.CharField(max_length=64)
    ended_at = models.DateTimeField()
    pool_hit_tokens = models.PositiveBigIntegerField()
    store_hit_tokens = models.PositiveBigIntegerField()
    miss_tokens = models.PositiveBigIntegerField()
    output_tokens = models.PositiveBigIntegerField()

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["attempt_id", "worker", "epoch"], name="metering_worker_record_once")
        ]
        indexes: ClassVar = [
            models.Index(fields=["request_id"], name="metering_record_request"),
            models.Index(fields=["ended_at"], name="metering_record_time"),
        ]

    def __str__(self) -> str:
        return f"{self.attempt_id} at {self.worker}"
