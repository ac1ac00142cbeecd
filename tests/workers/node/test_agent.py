"""The agent between a real fleet (PostgreSQL), real Valkey and real processes of the fake worker."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import redis

from controlplane.accounts.permissions import SYSTEM
from controlplane.config import home
from controlplane.fleet import services
from controlplane.fleet.models import Deployment, Node, Worker
from controlplane.fleet.statuses import WorkerStatus
from tests.controlplane.fleet import factories
from tests.workers.node.factories import FAKE_WORKER, QUICK, kill_all, running_pids
from workers.node.agent import NodeAgent
from workers.node.heartbeat import AgentHeartbeat, heartbeat_key
from workers.protocol import Role

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]
NODE = "here"


@pytest.fixture
def agent(valkey_url: str) -> Iterator[NodeAgent]:
    agent = NodeAgent(NODE, home(), valkey_url, timing=QUICK, command=FAKE_WORKER)
    agent.start()
    eventually(lambda: Node.objects.filter(name=NODE).exists())
    yield agent
    agent.stop()
    kill_all(home().root)
    (home().state / "wanted.json").unlink(missing_ok=True)


def eventually(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "did not come about in time"
        time.sleep(0.05)


def states() -> dict[str, str]:
    return dict(Worker.objects.values_list("name", "state"))


def deployed() -> Deployment:
    factories.model()
    deployment = factories.deployment()
    services.reconcile()
    eventually(lambda: set(states().values()) == {WorkerStatus.READY} and len(states()) == 2)
    return deployment


def test_a_deployment_becomes_processes(agent: NodeAgent) -> None:
    deployed()
    rows = Worker.objects.order_by("name")
    assert sorted(row.pid for row in rows) == sorted(running_pids(home()))
    assert all(row.epoch > 1_700_000_000 and row.endpoint.startswith("unix:") and row.observed_at for row in rows)


def test_a_killed_engine_is_replaced_and_the_row_follows(agent: NodeAgent) -> None:
    deployed()
    before = Worker.objects.earliest("name")
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    eventually(
        lambda: Worker.objects.filter(name=before.name, epoch__gt=before.epoch, state=WorkerStatus.READY).exists()
    )
    after = Worker.objects.get(name=before.name)
    assert after.restarts == before.restarts + 1


def test_scaling_down_drains_and_the_row_goes(agent: NodeAgent) -> None:
    deployment = deployed()
    services.deployment_scale(actor=SYSTEM, deployment=deployment.name, role=Role.DECODE, replicas=2)
    services.reconcile()
    eventually(lambda: list(states().values()).count(WorkerStatus.READY) == 3)
    services.deployment_scale(actor=SYSTEM, deployment=deployment.name, role=Role.DECODE, replicas=1)
    services.reconcile()
    eventually(lambda: len(states()) == 2)
    assert len(running_pids(home())) == 2


def test_stopping_the_node_and_resuming_it(agent: NodeAgent) -> None:
    deployed()
    epochs = dict(Worker.objects.values_list("name", "epoch"))
    services.node_stop_all(actor=SYSTEM, node=NODE, reason="test")
    agent.nudge()
    eventually(lambda: set(states().values()) == {WorkerStatus.STOPPED})
    assert running_pids(home()) == []
    services.node_resume(actor=SYSTEM, node=NODE)
    eventually(lambda: set(states().values()) == {WorkerStatus.READY})
    assert all(epoch > epochs[name] for name, epoch in Worker.objects.values_list("name", "epoch"))


def test_another_agent_adopts(agent: NodeAgent, valkey_url: str) -> None:
    deployed()
    before = dict(Worker.objects.values_list("name", "pid"))
    agent.stop()
    assert sorted(running_pids(home())) == sorted(filter(None, before.values()))
    second = NodeAgent(NODE, home(), valkey_url, timing=QUICK, command=FAKE_WORKER)
    second.start()
    try:
        eventually(lambda: second.supervisor.running == 2 and second.fleet.read_at is not None)
        time.sleep(1.0)  # several turns, in which it must not do anything
        assert dict(Worker.objects.values_list("name", "pid")) == before
        assert sorted(running_pids(home())) == sorted(filter(None, before.values()))
    finally:
        second.stop()


def test_the_heartbeat_tells_the_age_of_each_loop(agent: NodeAgent, valkey_url: str) -> None:
    with redis.Redis.from_url(valkey_url) as client:
        eventually(lambda: client.exists(heartbeat_key(NODE)))
        raw = client.get(heartbeat_key(NODE))
    assert isinstance(raw, bytes)
    beat = msgspec.msgpack.decode(raw, type=AgentHeartbeat)
    assert beat.node == NODE
    assert beat.loop_age_s < 30
    assert beat.failures == 0


def test_a_turn_that_fails_is_counted_and_the_loop_goes_on(agent: NodeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(state: object) -> None:
        raise RuntimeError("told to")

    monkeypatch.setattr(type(agent.supervisor), "turn", lambda self, state: broken(state))
    eventually(lambda: agent._failures > 2)
    monkeypatch.undo()
    deployed()


def test_an_order_to_stop_is_followed_with_a_full_disk(agent: NodeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    deployed()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(type(agent.records), "write_wanted", full)
        services.node_stop_all(actor=SYSTEM, node=NODE, reason="test")
        agent.nudge()
        eventually(lambda: set(states().values()) == {WorkerStatus.STOPPED})
        assert running_pids(home()) == []
        assert not agent.records.read_wanted().stopping
    eventually(lambda: agent.records.read_wanted().stopping)


def test_a_report_that_cannot_be_written_holds_up_no_other(agent: NodeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    observed = services.worker_observed
    bad: list[str] = []

    def refuse_one(**report: Any) -> None:
        if not bad:
            bad.append(report["worker_name"])
        if report["worker_name"] in bad:
            raise ValueError("told to")
        observed(**report)

    monkeypatch.setattr(services, "worker_observed", refuse_one)
    factories.model()
    factories.deployment()
    services.reconcile()
    eventually(lambda: list(states().values()).count(WorkerStatus.READY) == 1)
    monkeypatch.undo()
    eventually(lambda: list(states().values()).count(WorkerStatus.READY) == 2)
