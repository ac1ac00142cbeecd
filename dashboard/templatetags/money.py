"""Filters for money and for a group's column."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from django import template

register = template.Library()


@register.filter
def usd(amount: Decimal) -> str:
    """Dollars; below a cent with as many digits as it takes."""
    return f"${amount:,.2f}" if amount >= Decimal("0.01") or not amount else f"${amount:.6f}"


@register.filter
def per_million(micro: int) -> str:
    """Micro-dollars per million tokens as dollars, exactly."""
    text = f"{Decimal(micro) / 10**6:f}"
    return f"${text}"


@register.filter
def budget(micro: int | None) -> str:
    return "–" if micro is None else f"${Decimal(micro) / 10**6:,.2f}"


@register.filter
def of(values: Any, name: str) -> Any:
    """An item or attribute by name."""
    return values[name] if isinstance(values, dict) else getattr(values, name)
