"""Names for what the store knows by digest only: tenants behind salt ids, models behind fingerprints."""

from __future__ import annotations

from functools import lru_cache

import msgspec
import redis

from controlplane.accounts.models import Tenant
from controlplane.caching.store import index
from controlplane.config import secret_key
from controlplane.telemetry import selectors as telemetry
from workers.identity import CacheIdentity, tenant_salt
from workers.kvstore import statistics
from workers.kvstore.extent import salt_id
from workers.kvstore.index import IndexUnavailable
from workers.snapshots import WorkerSnapshot


@lru_cache(maxsize=10_000)
def salt_of(tenant: str) -> bytes:
    """The salt of a tenant's blocks: what the gateway sends to workers."""
    return tenant_salt(secret=secret_key().encode(), tenant=tenant)


def salt_id_of(tenant: str) -> str:
    return salt_id(salt_of(tenant))


def tenants_by_salt() -> dict[str, str]:
    """Salt id to slug. One query."""
    return {salt_id_of(slug): slug for slug in Tenant.objects.values_list("slug", flat=True)}


def worker_snapshots() -> list[WorkerSnapshot]:
    """What workers said last; empty while telemetry is away."""
    try:
        state = telemetry.metrics_state()
    except (redis.RedisError, msgspec.DecodeError):
        return []
    return [reading.snapshot for reading in state.workers] if state is not None else []


def models_by_fingerprint() -> dict[str, str]:
    """Fingerprint to model, of models that a worker serves now: the store itself keeps digests only."""
    return {
        snapshot.cache_identity.fingerprint(): snapshot.model
        for snapshot in worker_snapshots()
        if snapshot.cache_identity is not None
    }


def identity_of(deployment: str) -> CacheIdentity | None:
    """What the block hashes of a deployment start from; None while none of its workers runs."""
    for snapshot in worker_snapshots():
        if snapshot.deployment == deployment and snapshot.cache_identity is not None:
            return snapshot.cache_identity
    return None


def fingerprints_of(name: str) -> list[str]:
    """Fingerprints that a model's name, or the beginning of a fingerprint, stands for."""
    named = {fingerprint for fingerprint, model in models_by_fingerprint().items() if model == name}
    try:
        stored = set(statistics.read(index(), days=1).models)
    except IndexUnavailable:
        stored = set()
    if len(name) >= 8:
        named |= {fingerprint for fingerprint in stored if fingerprint.startswith(name)}
    return sorted(named)
