"""Reads the catalog's routes from the fleet."""

from __future__ import annotations

import logging
from functools import cache

import msgspec
from django.db import close_old_connections

from controlplane.fleet import selectors
from controlplane.fleet.models import Deployment
from controlplane.fleet.specification import RevisionSpec
from controlplane.inference.catalog import Route

log = logging.getLogger(__name__)


def read_routes() -> list[Route]:
    """Deployments that have a revision. Blocks; raises django.db.Error while PostgreSQL is away."""
    close_old_connections()  # a connection that broke is replaced, as at the beginning of a web request
    routes = []
    for deployment in selectors.deployments():
        try:
            routes += [_route(deployment)] if deployment.revision is not None else []
        except msgspec.ValidationError as error:  # one bad row must not take the others away
            _say_once(deployment.name, str(error))
    return routes


@cache
def _say_once(deployment: str, problem: str) -> None:
    log.error("deployment %s is not served: its specification is not readable: %s", deployment, problem)


def _route(deployment: Deployment) -> Route:
    revision = deployment.revision
    assert revision is not None
    pools = list(revision.pools.all())
    return Route(
        deployment=deployment.name,
        model=deployment.model_name,
        aliases=tuple(deployment.aliases),
        revision=revision.hash,
        created=int(deployment.created_at.timestamp()),
        max_context=RevisionSpec.from_json(revision.spec).engine.max_context,
        wanted=any(pool.replicas > 0 for pool in pools),
        workers=tuple(worker.name for pool in pools for worker in pool.workers.all()),
    )
