"""Show what the store holds by class, tenant and model, hits, evictions and troubles."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from django.core.management.base import OutputWrapper

from controlplane.caching import overview, presentation, selectors
from controlplane.caching.management.store_verbs._errors import explained
from controlplane.caching.units import duration, size


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as the API gives it")


def run(options: Namespace, out: OutputWrapper) -> None:
    with explained():
        contents, splits = overview.contents(), overview.splits()
    alerts = list(selectors.open_alerts())
    if options.json:
        whole = {
            "contents": presentation.contents_json(contents),
            "tokens": [presentation.split_json(split) for split in splits],
            "alerts": [presentation.alert_json(alert) for alert in alerts],
        }
        out.write(json.dumps(whole, indent=2))
        return
    for alert in alerts:
        since = f"{alert.since:%Y-%m-%d %H:%M:%S} UTC"
        out.write(f"TROUBLE {alert.trouble} at {alert.source} since {since}: {alert.reason}")
    total, disk = contents.total, contents.disk
    room = f"{size(disk.free)} of {size(disk.total)} free" if disk else "the disk does not answer"
    out.write(
        f"{size(total.bytes)} in {total.blocks} blocks, {total.extents} extents; pinned {size(contents.pinned_bytes)}"
    )
    out.write(f"disk: {room}; index server: {size(contents.index_bytes)}")
    line = "{:<24} {:>10} {:>10} {:>12} {:>9} {:>9}"
    out.write("\n" + line.format("class", "life", "bytes", "budget", "extents", "hit rate"))
    for use in contents.classes:
        rate = "-" if use.hit_rate is None else f"{use.hit_rate:.1%}"
        budget = size(use.byte_budget)
        out.write(line.format(use.name, duration(use.life_s), size(use.bytes), budget, use.extents, rate))
    for title, owners in (("tenant", contents.tenants), ("model", contents.models)):
        out.write("\n" + line.format(title, "", "bytes", "", "blocks", ""))
        for owner in owners:
            out.write(line.format(owner.name, "", size(owner.size.bytes), "", owner.size.blocks, ""))
    out.write("\nblocks that went, last two weeks: " + (_evictions(contents) or "none"))
    for split in splits:
        shares = ", ".join(f"{name} {share:.1%}" for name, _, share in split.shares()) if split.total else "no prompt"
        out.write(f"{split.label}: {split.total} prompt tokens; {shares}; shorter than one block: {split.short}")


def _evictions(contents: overview.Contents) -> str:
    return ", ".join(f"{eviction.reason} {eviction.blocks}" for eviction in contents.evictions)
