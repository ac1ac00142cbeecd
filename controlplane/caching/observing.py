"""Who sees the store, and what each says is wrong: the control worker's look, and the workers' reports."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.caching.alerts import POLICY_AHEAD, Observations
from controlplane.caching.identities import worker_snapshots

CONTROL = "control"


def everything(control: Mapping[str, str], *, ahead: bool) -> Observations:
    """`control` is what the control worker's own look found."""
    own = dict(control)
    if ahead:
        own[POLICY_AHEAD] = "the index holds a newer policy than the database (restored from a backup?); save it again"
    reports = {snapshot.address.worker: snapshot.store_troubles for snapshot in worker_snapshots()}
    return {CONTROL: own, **{worker: found for worker, found in reports.items() if found}}
