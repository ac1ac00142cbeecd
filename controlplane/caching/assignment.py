"""Which retention class a request belongs to: a pure function of the policy and what the gateway knows of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from controlplane.accounts.permissions import Principal, PrincipalKind
from controlplane.caching import tickets
from workers.kvstore import policy as codec
from workers.kvstore.policy import DEFAULT_POLICY, RetentionPolicy
from workers.kvstore.settings import DEFAULT_NAMESPACE

log = logging.getLogger(__name__)


def retention_class(policy: RetentionPolicy, *, principal: Principal, headers: Mapping[str, str], tools: bool) -> str:
    """The class of the first rule that holds, else the fallback. Header names are matched in any case."""
    return policy.classify(
        key_id=principal.id if principal.kind is PrincipalKind.KEY else "",
        headers={name.lower(): value for name, value in headers.items()},
        tools=tools,
    )


class Assignment:
    """The policy as a gateway knows it; `refresh` once a second keeps it that way. The last known one serves on."""

    def __init__(self, client: Any, namespace: str = DEFAULT_NAMESPACE) -> None:
        """`client` is an asyncio Redis client that gives bytes."""
        self._client = client
        self._key = f"{namespace}:policy"
        self.policy = DEFAULT_POLICY

    async def refresh(self) -> None:
        """Raises redis.RedisError, and PolicyError for what is no policy of this release."""
        version = await self._client.hget(self._key, "version")
        if version is None or int(version) <= self.policy.version:
            return
        body = await self._client.hget(self._key, "body")
        if body is not None:
            self.policy = codec.decode(body)
            log.info("requests are assigned by retention policy %d", self.policy.version)

    def classify(self, principal: Principal, headers: Mapping[str, str], *, tools: bool) -> str:
        """Warming names its class in a signed ticket; everything else goes by the rules."""
        ticket = tickets.of(headers)
        if ticket is not None:
            return ticket.retention_class
        return retention_class(self.policy, principal=principal, headers=headers, tools=tools)
