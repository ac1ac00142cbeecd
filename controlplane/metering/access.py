"""Whose usage somebody may see."""

from __future__ import annotations

from controlplane.accounts.permissions import Action, Principal, can
from controlplane.accounts.selectors import tenants

EVERY_TENANT = "*"
"""No tenant's slug: only a role held everywhere answers for it."""


def may_see_everyones(principal: Principal) -> bool:
    """Usage, cost and revenue of the whole installation."""
    return can(principal, Action.COSTS_VIEW, tenant=EVERY_TENANT)


def visible_tenants(principal: Principal) -> list[str] | None:
    """Slugs; None: every tenant's, those of deleted ones included."""
    if may_see_everyones(principal):
        return None
    return [tenant.slug for tenant in tenants() if can(principal, Action.COSTS_VIEW, tenant=tenant.slug)]
