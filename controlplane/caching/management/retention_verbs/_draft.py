"""Options that make a draft out of the policy in force; `set` and `preview` take the same."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import msgspec

from controlplane.caching import selectors
from controlplane.caching.documents import to_policy
from controlplane.caching.errors import PolicyRefused
from controlplane.caching.units import parse_duration, parse_size
from workers.kvstore.policy import RetentionClass, RetentionPolicy

NONE = "none"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("retention_class", nargs="?", metavar="CLASS", help="the class that the next options change")
    parser.add_argument("--life", metavar="TIME", help="time to live since last use: 72h, 7d")
    parser.add_argument("--budget", metavar="SIZE", help="bytes that the class may hold: 500GiB, or none")
    parser.add_argument("--sidecars", choices=("none", "unit_end", "all"), help="which window snapshots are kept")
    parser.add_argument("--sidecar-life", metavar="TIME", help="where it is shorter than that of the class; or none")
    parser.add_argument("--priority", type=int, help="lower ones go first when the store is full")
    parser.add_argument("--new", action="store_true", help="make the class")
    parser.add_argument("--delete", action="store_true", help="remove the class; what it holds falls to the fallback")
    parser.add_argument("--total", metavar="SIZE", help="bytes that the store may hold, or none")
    parser.add_argument("--low-watermark", type=float, metavar="SHARE", help="evictions go down to this share")
    parser.add_argument("--fallback", metavar="CLASS", help="class of requests that no rule claims")
    parser.add_argument("--file", type=Path, help="the whole policy as JSON (see `retention show --json`)")


def draft(options: Namespace) -> RetentionPolicy:
    """Raises PolicyRefused for what cannot be read."""
    policy = selectors.current_policy()
    if options.file is not None:
        try:
            policy = to_policy({"version": 1, **msgspec.json.decode(options.file.read_bytes(), type=dict[str, Any])})
        except (msgspec.DecodeError, OSError) as error:
            raise PolicyRefused(f"{options.file}: {error}") from error
    if options.retention_class is not None:
        policy = msgspec.structs.replace(policy, classes=_classes(policy, options))
    whole: dict[str, Any] = {}
    if options.total is not None:
        whole["total_bytes"] = _bounded(options.total, parse_size)
    if options.low_watermark is not None:
        whole["low_watermark"] = options.low_watermark
    if options.fallback is not None:
        whole["fallback"] = options.fallback
    return msgspec.structs.replace(policy, **whole)


def _classes(policy: RetentionPolicy, options: Namespace) -> tuple[RetentionClass, ...]:
    name = options.retention_class
    known = {item.name: item for item in policy.classes}
    if options.new == (name in known):
        raise PolicyRefused(f"there is a class {name} already" if options.new else f"there is no class {name} (--new?)")
    if options.delete:
        return tuple(item for item in policy.classes if item.name != name)
    if options.new and options.life is None:
        raise PolicyRefused("a new class needs --life")
    item = known.get(name) or RetentionClass(name=name, ttl_s=0.0)
    changed = _changed(item, options)
    return (
        *(changed if one.name == name else one for one in policy.classes),
        *([changed] if options.new else []),
    )


def _changed(item: RetentionClass, options: Namespace) -> RetentionClass:
    fields: dict[str, Any] = {}
    if options.life is not None:
        fields["ttl_s"] = _read(options.life, parse_duration)
    if options.budget is not None:
        fields["byte_budget"] = _bounded(options.budget, parse_size)
    if options.priority is not None:
        fields["priority"] = options.priority
    rule = item.sidecars
    if options.sidecars is not None:
        rule = msgspec.structs.replace(rule, keep=options.sidecars)
    if options.sidecar_life is not None:
        rule = msgspec.structs.replace(rule, ttl_s=_bounded(options.sidecar_life, parse_duration))
    return msgspec.structs.replace(item, sidecars=rule, **fields)


def _bounded(text: str, parse: Any) -> Any:
    return None if text == NONE else _read(text, parse)


def _read(text: str, parse: Any) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise PolicyRefused(str(error)) from error
