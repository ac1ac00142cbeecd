from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from controlplane.accounts.permissions import Role
from controlplane.fleet.models import Deployment, EvictionFreeze, Pool, Revision, Worker
from dashboard.views.workers import fleet_tree
from tests.controlplane.accounts import factories as accounts
from tests.dashboard import factories

pytestmark = [pytest.mark.integration, pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]


@pytest.fixture
def viewer(client: Client) -> Client:
    client.force_login(accounts.user(Role.VIEWER))
    return client


def test_a_state_comes_with_label_reason_and_since(viewer: Client) -> None:
    factories.deployment(workers=1)
    page = viewer.get("/workers").content.decode()
    assert "state-blue" in page
    assert "Loading" in page
    assert "reading weights" in page
    assert "data-since=" in page


def test_nothing_deployed_says_what_to_do(viewer: Client) -> None:
    assert "manage.py fleet deploy" in viewer.get("/workers").content.decode()


def test_htmx_gets_the_fleet_without_the_page(viewer: Client) -> None:
    factories.deployment()
    part = viewer.get("/workers", headers={"HX-Request": "true"}).content.decode()
    assert "smollm2-decode-1" in part
    assert "<html" not in part


def test_workers_of_an_old_revision_stand_below_the_wanted_one() -> None:
    deployment = factories.deployment(workers=1)
    old = Revision.objects.create(deployment=deployment, number=0, hash="b2" * 32, spec={}, created_by="test")
    Worker.objects.create(name="old-decode-0", pool=Pool.objects.create(revision=old, role="decode", replicas=0))
    [group] = fleet_tree().deployments
    assert [(revision.revision.number, revision.wanted) for revision in group.revisions] == [(1, True), (0, False)]
    assert [pool.pool.role for pool in group.revisions[0].pools] == ["prefill", "decode"]
    assert [worker.name for worker in group.revisions[1].pools[0].workers] == ["old-decode-0"]


def test_a_pool_without_workers_is_shown(viewer: Client) -> None:
    factories.deployment(workers=0)
    assert "manage.py fleet scale smollm2 decode 1" in viewer.get("/workers").content.decode()


def test_the_way_to_serve_that_is_not_used_is_not_shown() -> None:
    deployment = factories.deployment(workers=1)
    assert deployment.revision is not None
    Pool.objects.create(revision=deployment.revision, role="both", replicas=0)
    [group] = fleet_tree().deployments
    assert [pool.pool.role for pool in group.revisions[0].pools] == ["prefill", "decode"]


def test_a_freeze_of_evictions_is_on_top(viewer: Client) -> None:
    EvictionFreeze.objects.create(reason="5 of 6 workers were silent.")
    assert "5 of 6 workers were silent." in viewer.get("/workers").content.decode()


def test_the_number_of_queries_does_not_grow_with_the_fleet(viewer: Client, django_assert_num_queries: Any) -> None:
    factories.deployment("one", workers=1)
    factories.deployment("two", workers=9)
    assert Deployment.objects.count() == 2
    # session, user, roles, tenants (navigation); workers, deployments, pools and theirs; nodes and theirs; freeze
    with django_assert_num_queries(11):
        viewer.get("/workers")
