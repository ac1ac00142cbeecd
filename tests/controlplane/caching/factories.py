"""Policies and a store with something in it, as workers leave it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from controlplane.accounts.permissions import SYSTEM
from controlplane.caching import selectors, services
from controlplane.caching.identities import salt_of
from controlplane.caching.models import PolicyVersion
from controlplane.caching.store import store_settings
from tests.workers.kvstore.factories import IDENTITY, make_chain, put, use
from workers.identity import BlockHash
from workers.kvstore.policy import RetentionPolicy
from workers.kvstore.store import Store

HOUR_S = 3600.0


def edited(name: str = "chat", **fields: Any) -> RetentionPolicy:
    """The policy in force with fields of one class changed."""
    policy = selectors.current_policy()
    classes = tuple(msgspec.structs.replace(item, **fields) if item.name == name else item for item in policy.classes)
    return msgspec.structs.replace(policy, classes=classes)


def save(draft: RetentionPolicy | None = None, *, reason: str = "a test", **fields: Any) -> PolicyVersion:
    return services.policy_save(
        actor=SYSTEM,
        draft=draft if draft is not None else edited(**fields),
        expected_version=selectors.current_policy().version,
        reason=reason,
    )


@contextmanager
def worker_store(**changes: Any) -> Iterator[Store]:
    """The installation's store as a worker opens it."""
    settings = msgspec.structs.replace(store_settings(), reserve_bytes=0, index_timeout_s=10.0, **changes)
    with Store(settings) as store:
        store.maintenance.look()
        yield store


def fill(
    store: Store, *, tenant: str = "default", retention_class: str = "chat", blocks: int = 4, start: int = 0
) -> list[BlockHash]:
    """One chain of a tenant, written and used."""
    salt = salt_of(tenant)
    chain = make_chain(blocks, start=start or random.randrange(1, 10**6) * 1000, salt=salt)
    put(store, chain, retention_class=retention_class, salt=salt, fingerprint=IDENTITY.fingerprint())
    use(store, chain, retention_class, prompt_blocks=blocks + 1)
    return chain
