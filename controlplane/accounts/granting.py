"""Grant <= grantor: the rule for roles and for the scopes of keys alike."""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.accounts.limits import Limits, looser
from controlplane.accounts.permissions import SYSTEM, Action, PermissionRefused, Principal, PrincipalKind, can
from controlplane.accounts.roles import ROLE_ACTIONS


class ScopeEscalation(PermissionRefused):
    """Nobody hands out more than he has (grant <= grantor)."""


def require_grantable(actor: Principal, actions: Iterable[Action], *, tenant: str | None, what: str) -> None:
    """Raises ScopeEscalation unless the actor can do, where he grants it, everything that he grants.

    `tenant` None grants everywhere, which only a principal with a role held everywhere has to give.
    """
    if actor == SYSTEM:
        return
    for action in sorted(actions):
        held_everywhere = any(action in ROLE_ACTIONS[g.role] for g in actor.roles if g.tenant is None)
        allowed = held_everywhere if tenant is None else can(actor, action, tenant=tenant)
        if not allowed:
            raise ScopeEscalation(
                f"{actor.label} cannot grant {what}: it includes {action}, which he may not do himself"
            )


def require_limits_grantable(actor: Principal, limits: Limits) -> None:
    """Raises ScopeEscalation where a key gives another one more than it has itself. Users have no limits."""
    if actor.kind is PrincipalKind.KEY and (names := looser(limits, actor.limits)):
        raise ScopeEscalation(f"{actor.label} cannot grant more than its own limits: {', '.join(names)}")
