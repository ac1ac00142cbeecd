"""The only writer of the audit log; other services call it inside the transaction of the change itself."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from controlplane.accounts.permissions import Principal
from controlplane.audit.models import AuditEvent
from controlplane.middleware import current_request_id


class AuditOutsideTransaction(Exception):
    """A change and its audit event belong in one transaction: wrap the service in `transaction.atomic`."""


def record(
    *,
    actor: Principal,
    action: str,
    target: str,
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    reason: str = "",
    tenant: str = "",
) -> AuditEvent:
    """Add one event. `action` is `<entity>.<verb>`, `target` `<entity>:<name>`; no secret goes into before or after.

    Raises AuditOutsideTransaction where it could be committed without the change it speaks of.
    """
    if not transaction.get_connection().in_atomic_block:
        raise AuditOutsideTransaction(f"{action} of {target}")
    event = AuditEvent(
        actor_kind=actor.kind.value,
        actor_id=actor.id,
        actor_label=actor.label,
        tenant=tenant,
        action=action,
        target=target,
        before=before,
        after=after,
        reason=reason,
        request_id=current_request_id(),
    )
    event.full_clean()
    event.save()
    return event
