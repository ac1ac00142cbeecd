"""Limits on the command line: the same options for keys and tenants."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from decimal import Decimal
from typing import Any, Final

from controlplane.accounts.limits import Limits
from controlplane.commands import CommandFailure

_OPTIONS: Final = {
    "requests_per_minute": ("--requests-per-minute", "requests per minute"),
    "tokens_per_minute": ("--tokens-per-minute", "prompt and output tokens per minute"),
    "concurrent_requests": ("--concurrent", "requests at the same time"),
    "budget_micro_usd": ("--budget-usd", "US dollars per calendar month (UTC)"),
}
UNLIMITED: Final = "none"
MOST_MICRO_USD: Final = 2**63 - 1


def add_limit_arguments(parser: ArgumentParser) -> None:
    for name, (option, text) in _OPTIONS.items():
        parser.add_argument(option, dest=name, metavar="N", help=f"{text}; `{UNLIMITED}` takes the limit away")


def given_limits(options: Namespace) -> dict[str, Any]:
    """The limits that were named, by field. Raises CommandFailure for what is no number."""
    changes: dict[str, Any] = {}
    for name, (option, _) in _OPTIONS.items():
        text = getattr(options, name)
        if text is None:
            continue
        if text == UNLIMITED:
            changes[name] = None
            continue
        try:
            changes[name] = micro_of_usd(text) if name == "budget_micro_usd" else int(text)
        except ValueError as error:
            raise CommandFailure(f"{option} {text}: give a number, or `{UNLIMITED}`") from error
    return changes


def micro_of_usd(text: str) -> int:
    """Dollars, to the micro-dollar. Raises ValueError."""
    try:
        micro = Decimal(text) * 10**6
    except ArithmeticError as error:  # no number, or one beyond all bounds
        raise ValueError(f"{text} is no amount") from error
    if not micro.is_finite() or micro != micro.to_integral_value():
        raise ValueError(f"{text} has more than six decimals")
    if abs(micro) > MOST_MICRO_USD:
        raise ValueError(f"{text} is more than can be counted")
    return int(micro)


def describe(limits: Limits) -> str:
    """One line for people."""
    parts = [
        f"{value / 10**6:,.2f} $/month" if name == "budget_micro_usd" else f"{value:,} {_OPTIONS[name][1]}"
        for name, value in limits.as_dict().items()
        if value is not None
    ]
    return ", ".join(parts) or "no limits"
