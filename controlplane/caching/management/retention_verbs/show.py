"""Show the policy in force: classes, rules, budgets and pins."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.caching import selectors
from controlplane.caching.documents import rule_text, to_body
from controlplane.caching.units import duration, size


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as `retention set --file` takes it")


def run(options: Namespace, out: OutputWrapper) -> None:
    policy, row = selectors.current_policy(), selectors.current_version()
    if options.json:
        body = to_body(policy)
        del body["version"]
        out.write(json.dumps(body, indent=2))
        return
    made = f", {row.created_at:%Y-%m-%d %H:%M:%S} UTC by {row.created_by}: {row.reason}" if row else ""
    out.write(f"version {policy.version}{made}")
    line = "{:<24} {:>10} {:>12} {:<10} {:>8}"
    out.write(line.format("class", "life", "budget", "sidecars", "priority"))
    for item in policy.classes:
        out.write(
            line.format(item.name, duration(item.ttl_s), size(item.byte_budget), item.sidecars.keep, item.priority)
        )
    out.write(f"total {size(policy.total_bytes)}, evictions down to {policy.low_watermark:.0%}")
    for rule in policy.rules:
        out.write(f"rule: {rule_text(rule)}")
    out.write(f"otherwise: {policy.fallback}")
    for pin in policy.pins:
        out.write(f"pin {pin.name}: {pin.tip}")
