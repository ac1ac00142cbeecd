"""Durations and sizes as people write and read them. Pure functions."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

SECONDS: Final = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400}
BYTES: Final = {
    "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50,
    "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15,
}  # fmt: skip
MOST: Final = 2**64 - 1
_NUMBER: Final = re.compile(r"\s*(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)\s*([A-Za-z]+)\s*", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `30min`, `72h`, `3d`. Raises ValueError."""
    return float(_parse(text, SECONDS, "a duration is a number and s, min, h or d, as 72h"))


def parse_size(text: str) -> int:
    """Bytes of `512MiB`, `1.5TB`. Raises ValueError."""
    return round(_parse(text, BYTES, "a size is a number and a unit, as 500GiB or 2TB"))


def _parse(text: str, units: dict[str, int], help_text: str) -> Decimal:
    match = _NUMBER.fullmatch(text)
    factor = {name.lower(): value for name, value in units.items()}.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r}: {help_text}")
    found = Decimal(match[1].replace(",", "")) * factor
    if abs(found) > MOST:
        raise ValueError(f"{text!r} is more than this system can count")
    return found


def duration(seconds: float) -> str:
    """`72 h`, `7 d`, `90 s`: the largest unit that leaves a whole number, hours up to a week of them."""
    if seconds == float("inf"):
        return "for ever"
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= size and seconds % size == 0 and not (unit == "d" and seconds <= 4 * size):
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,g} s"


def exact_duration(seconds: float) -> str:
    """As `duration`, but `parse_duration` has the same number of it: for fields that people edit."""
    text = duration(seconds).replace(",", "")
    try:
        same = parse_duration(text) == seconds
    except ValueError:
        same = False
    return text if same else f"{Decimal(repr(float(seconds))):f} s"


def exact_size(count: int) -> str:
    """The shortest of the units in which the number has three decimals at most; `parse_size` has the same bytes of it.

    Binary units before decimal ones where both are as short.
    """
    amounts = [(Decimal(count) / factor, name) for name, factor in BYTES.items()]
    exact = [f"{amount.normalize():f} {name}" for amount, name in amounts if _decimals(amount) <= 3]
    return min(exact, key=lambda text: len(text.split()[0]))


def _decimals(amount: Decimal) -> int:
    exponent = amount.normalize().as_tuple().exponent
    assert isinstance(exponent, int)  # finite
    return max(-exponent, 0)


def size(count: float | None) -> str:
    """Binary units with three digits; None is no bound."""
    if count is None:
        return "no bound"
    amount, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(amount) < 1024 or unit == "PiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or abs(amount) >= 100 else f"{amount:.3g} {unit}"
