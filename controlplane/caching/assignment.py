"""Which retention class a request belongs to: a pure function of the policy and what the gateway knows of it."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.accounts.permissions import Principal, PrincipalKind
from workers.kvstore.policy import RetentionPolicy


def retention_class(policy: RetentionPolicy, *, principal: Principal, headers: Mapping[str, str], tools: bool) -> str:
    """The class of the first rule that holds, else the fallback. Header names are matched in any case."""
    return policy.classify(
        key_id=principal.id if principal.kind is PrincipalKind.KEY else "",
        headers={name.lower(): value for name, value in headers.items()},
        tools=tools,
    )
