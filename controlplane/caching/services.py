"""The only writers of this app's tables and of the store's contents; each is at home in a module of its own."""

from __future__ import annotations

from controlplane.caching.alerts import alerts_observe, alerts_prune
from controlplane.caching.policies import pin_remove, pins_add, policy_problems, policy_rollback, policy_save
from controlplane.caching.publication import publish_current
from controlplane.caching.purging import purge
from controlplane.caching.warming import Progress, warm_advance, warm_cancel, warm_claim, warm_create

__all__ = [
    "Progress", "alerts_observe", "alerts_prune", "pin_remove", "pins_add", "policy_problems", "policy_rollback",
    "policy_save", "publish_current", "purge", "warm_advance", "warm_cancel", "warm_claim", "warm_create",
]  # fmt: skip
