"""Rolled-up telemetry: 10 s for a day, 5 min for 90 days. Frames of one second live in Valkey, not here."""

from __future__ import annotations

from typing import ClassVar, Final

from django.db import models

FINE_S: Final = 10
COARSE_S: Final = 300


class Rollup(models.Model):
    """What happened in [at, at + resolution). Sums and histograms, never averages of averages.

    `writer` is the epoch of the telemetry process that wrote the row, 0 for rows condensed from finer ones: two
    processes may each have seen a part of one period, and readers add the parts up. Writing a row again replaces it.
    """

    resolution = models.PositiveSmallIntegerField(choices=[(FINE_S, "10 s"), (COARSE_S, "5 min")])
    at = models.DateTimeField()
    writer = models.PositiveBigIntegerField(default=0)
    totals = models.JSONField()
    """`telemetry.totals.Totals` as JSON."""

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["resolution", "at", "writer"], name="telemetry_rollup_once")
        ]

    def __str__(self) -> str:
        return f"{self.resolution} s at {self.at:%Y-%m-%d %H:%M:%S}"
