"""Show what `retention set` with the same options would do: what goes, and the hit rate. Changes nothing."""

from __future__ import annotations

from argparse import Namespace

from django.core.management.base import OutputWrapper

from controlplane.caching.management.retention_verbs._draft import add_arguments, draft
from controlplane.caching.management.store_verbs._errors import explained
from controlplane.caching.previews import PolicyPreview, policy_preview
from controlplane.caching.units import size
from controlplane.commands import CommandFailure

__all__ = ["add_arguments", "run", "show"]


def run(options: Namespace, out: OutputWrapper) -> None:
    with explained():
        preview = policy_preview(draft(options))
    show(preview, out)
    if preview.problems:
        raise CommandFailure("it would be refused")


def show(preview: PolicyPreview, out: OutputWrapper) -> None:
    for problem in preview.problems:
        out.write(f"refused: {problem}")
    for change in preview.changes:
        out.write(f"{change.field}: {change.before} -> {change.after}")
    if preview.unavailable:
        out.write(f"its effect cannot be told: {preview.unavailable}")
    effect = preview.effect
    if effect is None:
        return
    out.write(f"goes at the next sweep: {effect.blocks} blocks, {size(effect.bytes)}, {effect.extents} extents")
    for age, blocks in effect.blocks_by_age.items():
        out.write(f"  last used {age}: {blocks} blocks, {size(effect.bytes_by_age[age])}")
    for name, excess in effect.over_budget_bytes.items():
        out.write(f"  over the budget of {name}: {size(excess)} more, least recently used first")
    for name, forecast in effect.forecast.items():
        if forecast.hit_rate is None or forecast.new_hit_rate is None:
            out.write(f"hit rate of {name}: nothing is known yet")
        else:
            out.write(f"hit rate of {name}: {forecast.hit_rate:.1%} -> {forecast.new_hit_rate:.1%}")
