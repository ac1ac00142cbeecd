from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.accounts.permissions import SYSTEM
from controlplane.fleet import services
from controlplane.fleet.models import Deployment, InvalidTransition, Node, Worker
from controlplane.fleet.statuses import DeploymentState, WorkerStatus
from tests.controlplane.fleet import factories
from tests.controlplane.fleet.factories import observe

pytestmark = [pytest.mark.integration, pytest.mark.django_db]


@pytest.fixture
def name() -> str:
    factories.node("n1")
    factories.deployment("chat")
    services.reconcile()
    return "chat-decode-0"


def worker(name: str) -> Worker:
    return Worker.objects.get(name=name)


def test_passing_states_say_until_when(name: str) -> None:
    observe(name, WorkerStatus.LOADING, reason="reading weights")
    row = worker(name)
    assert (row.state, row.reason) == ("loading", "reading weights")
    assert row.next_check is not None
    assert row.deadline is not None
    assert row.since < row.deadline
    observe(name, WorkerStatus.READY)
    row = worker(name)
    assert (row.next_check, row.deadline) == (None, None)


def test_the_same_wait_does_not_move_its_deadline_or_start(name: str) -> None:
    observe(name, WorkerStatus.LOADING, reason="reading weights")
    first = worker(name)
    Worker.objects.filter(pk=first.pk).update(observed_at=timezone.now() - timedelta(seconds=30))
    observe(name, WorkerStatus.LOADING, reason="reading weights")
    again = worker(name)
    assert (again.deadline, again.since) == (first.deadline, first.since)
    assert first.observed_at is not None
    assert again.observed_at is not None
    assert again.observed_at >= first.observed_at


def test_saying_the_same_again_writes_nothing(name: str, django_assert_num_queries: object) -> None:
    observe(name, WorkerStatus.READY)
    with django_assert_num_queries(3):  # type: ignore[operator]  # savepoint, the row, its release
        assert observe(name, WorkerStatus.READY)


def test_an_older_epoch_does_not_count(name: str) -> None:
    observe(name, WorkerStatus.READY, epoch=5)
    assert not observe(name, WorkerStatus.STOPPED, epoch=4)
    assert worker(name).state == "ready"


def test_a_new_epoch_starts_over(name: str) -> None:
    observe(name, WorkerStatus.READY, epoch=5)
    before = worker(name).since
    with pytest.raises(InvalidTransition):
        observe(name, WorkerStatus.LOADING, epoch=5)
    assert observe(name, WorkerStatus.LOADING, epoch=6)
    assert worker(name).since > before
    assert worker(name).epoch == 6


def test_an_unknown_worker_is_said_so() -> None:
    assert not observe("nobody", WorkerStatus.READY)
    services.worker_removed(worker_name="nobody")


def test_the_deployment_follows_its_workers(name: str) -> None:
    observe(name, WorkerStatus.READY)
    deployment = Deployment.objects.get()
    assert deployment.state == DeploymentState.PROGRESSING
    assert "1 of 2" in deployment.reason
    assert deployment.deadline is not None
    observe("chat-prefill-0", WorkerStatus.READY)
    deployment.refresh_from_db()
    assert (deployment.state, deployment.reason, deployment.deadline) == ("ready", "", None)
    observe(name, WorkerStatus.FAILED, reason="exit code 3: bad model")
    deployment.refresh_from_db()
    assert deployment.state == DeploymentState.DEGRADED
    assert "exit code 3" in deployment.reason


def test_a_wanted_worker_whose_process_went_waits_anew(name: str) -> None:
    observe(name, WorkerStatus.READY)
    services.worker_removed(worker_name=name)
    row = worker(name)
    assert (row.state, row.pid, row.endpoint) == ("pending", None, "")


def test_on_a_stopped_node_it_is_stopped(name: str) -> None:
    observe(name, WorkerStatus.READY)
    services.node_stop_all(actor=SYSTEM, node="n1", reason="make down")
    services.worker_removed(worker_name=name)
    services.worker_removed(worker_name=name)
    assert worker(name).state == "stopped"
    services.node_resume(actor=SYSTEM, node="n1")
    assert observe(name, WorkerStatus.STARTING, epoch=2)


def test_a_retired_worker_goes_with_its_process(name: str) -> None:
    services.deployment_delete(actor=SYSTEM, deployment="chat")
    services.reconcile()
    services.worker_removed(worker_name=name)
    assert not Worker.objects.filter(name=name).exists()


def test_a_node_registers_once_and_is_seen_often(django_assert_num_queries: object) -> None:
    services.node_seen(name="n1", hostname="a", cores=2)
    with django_assert_num_queries(3):  # type: ignore[operator]
        services.node_seen(name="n1", hostname="a", cores=2)
    services.node_seen(name="n1", hostname="b", cores=8)
    node = Node.objects.get()
    assert (node.hostname, node.cores, node.profile.name) == ("b", 8, "generic-cpu")
    factories.unseen(node, 100)
    services.node_seen(name="n1", hostname="b", cores=8)
    node.refresh_from_db()
    assert node.seen_age_s() < 100
