"""Removing what a tenant, a model or a class has in the store and in every pool, for good."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from controlplane.accounts.models import Tenant
from controlplane.accounts.permissions import Action, Principal, require
from controlplane.audit.services import record
from controlplane.caching import selectors
from controlplane.caching.errors import PurgeRefused
from controlplane.caching.identities import fingerprints_of, salt_id_of
from controlplane.caching.store import opened
from workers.kvstore.index import IndexUnavailable
from workers.kvstore.upkeep import PurgeReport

KINDS = ("tenant", "model", "class")


@dataclass(frozen=True, slots=True)
class Scope:
    """What a purge removes: a tenant's slug, a model's name or fingerprint, or a class."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def purge(*, actor: Principal, scope: Scope, reason: str) -> PurgeReport:
    """Remove the scope's blocks from store and pools; writes that are under way become void.

    The audit event is written first: a purge that breaks off half-way was still ordered, and can be ordered again.
    Raises PermissionRefused, PurgeRefused, StoreUnavailable.
    """
    require(actor, Action.CACHE_MANAGE)
    if not reason.strip():
        raise PurgeRefused("say why: the reason goes into the audit log")
    targets = _targets(scope)
    with opened() as store:
        with transaction.atomic():
            record(
                actor=actor,
                action="store.purge",
                target=f"{scope.kind}:{scope.name}",
                before=None,
                after=None,
                reason=reason.strip(),
                tenant=scope.name if scope.kind == "tenant" else "",
            )
        total = PurgeReport()
        try:
            for arguments in targets:
                done = store.upkeep.purge(**arguments)
                total.extents += done.extents
                total.claims += done.claims
                total.unindexed += done.unindexed
        except (IndexUnavailable, OSError) as error:
            raise PurgeRefused(f"the purge broke off ({error}); order it again") from error
    return total


def _targets(scope: Scope) -> list[dict[str, str]]:
    """Arguments of `Upkeep.purge`, one call each. Raises PurgeRefused for what does not exist."""
    match scope.kind:
        case "tenant":
            if not Tenant.objects.filter(slug=scope.name).exists():
                raise PurgeRefused(f"there is no tenant {scope.name}")
            return [{"salt_id": salt_id_of(scope.name)}]
        case "model":
            found = fingerprints_of(scope.name)
            if not found:
                raise PurgeRefused(
                    f"the store knows no model {scope.name}; give the fingerprint that `manage.py store stats` shows"
                )
            return [{"fingerprint": fingerprint} for fingerprint in found]
        case "class":
            if scope.name not in {item.name for item in selectors.current_policy().classes}:
                raise PurgeRefused(f"there is no retention class {scope.name}")
            return [{"retention_class": scope.name}]
        case _:
            raise PurgeRefused(f"a purge is by {', '.join(KINDS)}, not by {scope.kind}")
