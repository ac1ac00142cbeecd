"""Celery tasks of accounts: fetch, call a service, nothing else."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

from django.utils import timezone

from controlplane.accounts import selectors, services
from controlplane.accounts.permissions import SYSTEM
from controlplane.caching.errors import CachingError
from controlplane.caching.purging import Scope, purge
from controlplane.celery import app

AGAIN_AFTER: Final = timedelta(minutes=15)
"""Longer than any request's deadline: what ran when its tenant was deleted writes nothing after that."""

log = logging.getLogger(__name__)


@app.task(name="controlplane.accounts.tasks.purge_deleted_tenants")
def purge_deleted_tenants() -> None:
    for tenant in selectors.tenants_to_purge(now=timezone.now(), again_after=AGAIN_AFTER):
        try:
            purge(actor=SYSTEM, scope=Scope("tenant", tenant.slug), reason="the tenant was deleted")
        except CachingError as error:
            log.warning("blocks of the deleted tenant %s stay for now: %s", tenant.slug, error)
            continue
        services.tenant_purged(tenant=tenant)
