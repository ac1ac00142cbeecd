from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from controlplane.accounts.permissions import SYSTEM
from controlplane.audit.models import AuditEvent
from controlplane.fleet import reconciliation, selectors, services
from controlplane.fleet.models import Deployment, EvictionFreeze, HardwareProfile, Node, Worker
from controlplane.fleet.statuses import WorkerStatus
from tests.controlplane.fleet import factories
from tests.controlplane.fleet.factories import observe
from workers.protocol import Role

pytestmark = [pytest.mark.integration, pytest.mark.django_db]


def scale(role: Role, replicas: int) -> None:
    services.deployment_scale(actor=SYSTEM, deployment="chat", role=role, replicas=replicas)


def names() -> list[str]:
    return [worker.name for worker in Worker.objects.order_by("name")]


def test_rows_follow_replicas_and_a_second_run_does_nothing() -> None:
    factories.node("n1")
    factories.deployment("chat", prefill=1, decode=2)
    done = services.reconcile()
    assert sorted(done.created) == ["chat-decode-0", "chat-decode-1", "chat-prefill-0"]
    assert sorted(done.placed) == sorted(done.created)
    assert services.reconcile() == reconciliation.Reconciled()
    assert {worker.node.name for worker in Worker.objects.all() if worker.node} == {"n1"}


def test_without_a_node_workers_wait_and_say_for_what() -> None:
    factories.deployment("chat")
    services.reconcile()
    worker = Worker.objects.first()
    assert worker is not None
    assert worker.state == WorkerStatus.PENDING
    assert "no node is registered" in worker.reason
    assert worker.deadline is not None
    factories.node("n1", seen_s_ago=1000)
    services.reconcile()
    worker.refresh_from_db()
    assert "none of 1 nodes" in worker.reason
    factories.node("n2")
    assert len(services.reconcile().placed) == 2


def test_workers_go_where_most_room_is() -> None:
    factories.node("big", cores=8)
    factories.node("small", cores=2)
    factories.deployment("chat", prefill=4, decode=4)
    services.reconcile()
    on = {node.name: node.workers.count() for node in Node.objects.all()}
    assert on == {"big": 7, "small": 1}


def test_cards_are_never_shared() -> None:
    node = factories.node("gpu")
    Node.objects.filter(pk=node.pk).update(profile=HardwareProfile.objects.get(name="gb200-72"))
    factories.deployment("chat", prefill=3, decode=3)
    done = services.reconcile()
    assert len(done.placed) == 4
    waiting = Worker.objects.filter(node=None).first()
    assert waiting is not None
    assert "1 free cards are needed" in waiting.reason


def test_scaling_down_stops_the_least_useful_and_the_row_goes_with_the_process() -> None:
    factories.node("n1")
    factories.deployment("chat", prefill=1, decode=3)
    services.reconcile()
    observe("chat-decode-2", WorkerStatus.READY)
    scale(Role.DECODE, 1)
    assert sorted(services.reconcile().retired) == ["chat-decode-0", "chat-decode-1"]
    assert [worker.name for worker in selectors.node_wanted("n1")] == ["chat-decode-2", "chat-prefill-0"]
    services.worker_removed(worker_name="chat-decode-0")
    assert "chat-decode-0" not in names()


def test_a_name_is_not_given_twice_while_its_old_worker_drains() -> None:
    factories.node("n1")
    factories.deployment("chat")
    services.reconcile()
    scale(Role.DECODE, 0)
    services.reconcile()
    scale(Role.DECODE, 1)
    assert services.reconcile().created == ["chat-decode-1"]
    services.worker_removed(worker_name="chat-decode-0")
    scale(Role.DECODE, 2)
    assert services.reconcile().created == ["chat-decode-0"]


def test_a_deleted_deployment_goes_when_its_last_worker_has() -> None:
    factories.node("n1")
    factories.deployment("chat")
    services.reconcile()
    services.deployment_delete(actor=SYSTEM, deployment="chat")
    services.reconcile()
    assert selectors.node_wanted("n1") == []
    assert "2 of its workers" in Deployment.objects.get().reason
    for name in names():
        services.worker_removed(worker_name=name)
    assert services.reconcile().deployments_deleted == ["chat"]
    assert not Deployment.objects.exists()
    assert not Worker.objects.exists()


def test_workers_that_were_never_placed_go_at_once() -> None:
    factories.deployment("chat")
    services.reconcile()
    services.deployment_delete(actor=SYSTEM, deployment="chat")
    done = services.reconcile()
    assert len(done.deleted) == 2
    assert done.deployments_deleted == ["chat"]


def test_losing_a_node_replaces_its_workers_on_another() -> None:
    dying = factories.node("n1", cores=8)
    factories.deployment("chat")
    services.reconcile()
    factories.all_ready()
    factories.node("n2")
    factories.unseen(dying, 100)
    done = services.reconcile()
    assert sorted(done.lost) == ["chat-decode-0", "chat-prefill-0"]
    assert sorted(done.created) == ["chat-decode-1", "chat-prefill-1"]
    assert sorted(done.retired) == sorted(done.lost)
    assert "not seen for 1" in Worker.objects.get(name="chat-decode-0").reason
    assert AuditEvent.objects.filter(action="worker.lost").count() == 2
    assert services.reconcile() == reconciliation.Reconciled()


def test_without_another_node_the_lost_wait_and_may_come_back() -> None:
    node = factories.node("n1")
    factories.deployment("chat")
    services.reconcile()
    factories.all_ready()
    factories.unseen(node, 100)
    done = services.reconcile()
    assert len(done.lost) == 2
    assert done.created == []
    services.node_seen(name="n1", hostname="host", cores=4)
    factories.all_ready()
    assert services.reconcile() == reconciliation.Reconciled()
    assert Deployment.objects.get().state == "ready"


def five_lost() -> Node:
    """Five of six running workers are on a node that was not seen."""
    node = factories.node("n1", cores=100)
    factories.deployment("chat", prefill=1, decode=4)
    services.reconcile()
    factories.node("n2", cores=200)
    factories.deployment("other", prefill=0, decode=0, both=1)
    services.reconcile()
    factories.all_ready()
    factories.unseen(node, 100)
    return node


def test_losing_most_of_five_or_more_at_once_freezes_and_says_so() -> None:
    node = five_lost()
    done = services.reconcile()
    assert done.lost == []
    assert "5 of 6" in done.frozen
    freeze = selectors.eviction_freeze()
    assert freeze is not None
    assert freeze.reason == done.frozen
    assert services.reconcile().frozen == done.frozen
    assert AuditEvent.objects.filter(action="eviction_freeze.start").count() == 1
    assert set(Worker.objects.values_list("state", flat=True)) == {"ready"}
    services.node_seen(name=node.name, hostname="host", cores=100)
    assert services.reconcile() == reconciliation.Reconciled()
    assert not EvictionFreeze.objects.exists()


def test_a_confirmed_loss_is_a_loss() -> None:
    five_lost()
    services.reconcile()
    services.eviction_freeze_confirm(actor=SYSTEM, reason="the rack burnt down")
    services.eviction_freeze_confirm(actor=SYSTEM, reason="again")
    done = services.reconcile()
    assert len(done.lost) == 5
    assert len(done.created) == 5
    assert AuditEvent.objects.filter(action="eviction_freeze.confirm").count() == 1
    services.reconcile()
    assert not EvictionFreeze.objects.exists()


def test_a_freeze_that_some_have_come_back_from_still_holds() -> None:
    five_lost()
    services.reconcile()
    Worker.objects.filter(name__in=["chat-decode-0", "chat-decode-1", "chat-decode-2"]).update(
        node=Node.objects.get(name="n2")
    )
    done = services.reconcile()
    assert done.lost == []
    assert done.frozen


def test_few_workers_freeze_nothing() -> None:
    node = factories.node("n1")
    factories.deployment("chat", prefill=2, decode=2)
    services.reconcile()
    factories.all_ready()
    factories.unseen(node, 100)
    assert len(services.reconcile().lost) == 4


def test_retired_workers_of_a_node_long_gone_are_forgotten() -> None:
    node = factories.node("n1")
    factories.deployment("chat")
    services.reconcile()
    services.deployment_delete(actor=SYSTEM, deployment="chat")
    services.reconcile()
    factories.unseen(node, reconciliation.GONE_S + 1)
    assert len(services.reconcile().deleted) == 2


def test_a_wait_past_its_deadline_shows_on_the_deployment() -> None:
    factories.node("n1")
    factories.deployment("chat")
    services.reconcile()
    observe("chat-decode-0", WorkerStatus.LOADING, reason="reading", deadline=timezone.now() + timedelta(seconds=5))
    services.reconcile(now=timezone.now() + timedelta(seconds=6))
    deployment = Deployment.objects.get()
    assert deployment.state == "degraded"
    assert "longer than it should be" in deployment.reason


@contextmanager
def lock_held_elsewhere() -> Iterator[None]:
    parameters = connection.get_connection_params()
    parameters.pop("cursor_factory", None)
    parameters.pop("context", None)
    parameters.pop("prepare_threshold", None)
    with psycopg.connect(**parameters) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", [reconciliation.LOCK])
        yield


def test_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciliation, "LOCK_TIMEOUT_MS", 50)
    factories.node("n1")
    factories.deployment("chat")
    with lock_held_elsewhere():
        done = services.reconcile()
    assert done.busy
    assert done.created == []
    assert not services.reconcile().busy
