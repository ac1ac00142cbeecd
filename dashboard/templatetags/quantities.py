"""Filters for amounts: bytes, spans of time, shares, counts."""

from __future__ import annotations

from typing import Any

from django import template

from controlplane.caching import units

register = template.Library()

NOTHING = "–"


@register.filter
def size(count: float | None) -> str:
    """Bytes in binary units; None has no bound."""
    return units.size(count)


@register.filter
def span(seconds: float) -> str:
    return units.duration(seconds)


@register.filter
def percent(share: float | None) -> str:
    """One decimal: hit rates differ in tenths."""
    return NOTHING if share is None else f"{share * 100:.1f} %"


@register.filter
def width(share: float) -> str:
    """A share as an attribute of SVG."""
    return f"{share * 100:.3f}%"


@register.filter
def thousands(count: int) -> str:
    return f"{count:,}"


@register.filter
def policy_value(value: Any, field: str) -> str:
    """A value of a policy's field as a person reads it: lives as time, budgets as bytes."""
    if value is None:
        return "no bound" if "budget" in field or "total" in field else NOTHING
    if field.startswith("pin "):
        return f"{value[:16]}…"
    if field.endswith("life_s"):
        return units.duration(value)
    if field.endswith(("byte_budget", "total_bytes")):
        return units.size(value)
    if field == "low_watermark":
        return f"{value:.0%}"
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return str(value)


@register.filter
def field_name(field: str) -> str:
    """`class chat life_s` without its unit."""
    return field.removesuffix("_s").replace("_", " ").replace("total bytes", "total budget").replace("byte ", "")


@register.filter
def lookup(mapping: dict[Any, Any], key: Any) -> Any:
    return mapping.get(key)
