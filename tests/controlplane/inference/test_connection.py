"""Liveness and reconnection on the gateway's own connection."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.inference.connection import CannotSend, ConnectionState
from controlplane.inference.events import Lost, WorkerEvent
from tests.controlplane.inference.conftest import Core, eventually
from tests.controlplane.inference.stub_worker import Script
from workers.protocol import Address, CacheScope, Prefill, RequestId, Role, Sampling, WorkerState, pack_tokens
from workers.spec import WorkerLease


def prefill(epoch: int = 1) -> Prefill:
    return Prefill(
        request_id=RequestId("r"),
        epoch=epoch,
        tokens=pack_tokens([1, 2]),
        sampling=Sampling(),
        cache=CacheScope(salt=b""),
    )


async def test_only_ready_workers_take_requests(core: Core) -> None:
    worker = await core.add(Role.BOTH)
    connection = core.connections[worker.address.worker]
    worker.state = WorkerState.LOADING
    worker.say_status()
    await eventually(lambda: connection.state is ConnectionState.LOADING)
    with pytest.raises(CannotSend):
        connection.submit(prefill(), lambda event: None)
    worker.state = WorkerState.DRAINING
    await eventually(lambda: connection.state is ConnectionState.DRAINING)
    worker.state = WorkerState.READY
    await eventually(lambda: connection.usable)


async def test_a_stalled_engine_gets_nothing_new_and_then_loses_its_requests(core: Core) -> None:
    worker = await core.add(Role.BOTH)
    connection = core.connections[worker.address.worker]
    core.cluster.scripts = [Script(hang_before=0)]
    events: list[WorkerEvent] = []
    connection.submit(prefill(), events.append)
    worker.step_age_s = 6.0
    worker.say_status()
    await eventually(lambda: connection.state is ConnectionState.STALLED)
    assert not any(isinstance(event, Lost) for event in events)
    worker.step_age_s = 31.0
    await eventually(lambda: any(isinstance(event, Lost) for event in events))
    await eventually(lambda: worker.cancelled() == ["r"])
    worker.step_age_s = 0.0
    await eventually(lambda: connection.usable)


async def test_a_silent_connection_is_given_up(core: Core) -> None:
    worker = await core.add(Role.BOTH)
    connection = core.connections[worker.address.worker]
    core.cluster.status_interval_s = 60.0
    before = connection.reconnects
    await eventually(lambda: connection.reconnects > before)
    await eventually(lambda: connection.usable)


async def test_a_restarted_worker_is_found_without_a_new_lease(core: Core) -> None:
    worker = await core.add(Role.BOTH)
    connection = core.connections[worker.address.worker]
    await worker.restart()
    await eventually(lambda: connection.address.epoch == 2 and connection.usable)


async def test_a_lease_of_a_new_epoch_ends_everything_of_the_old_one(core: Core) -> None:
    worker = await core.add(Role.BOTH)
    connection = core.connections[worker.address.worker]
    core.cluster.scripts = [Script(hang_before=0)]
    events: list[WorkerEvent] = []
    connection.submit(prefill(), events.append)
    old = connection.lease
    await worker.restart()
    connection.renew(worker.lease)
    assert connection.address.epoch == 2
    await eventually(lambda: any(isinstance(event, Lost) for event in events))
    await eventually(lambda: connection.usable)
    connection.renew(old)  # read late
    assert connection.address.epoch == 2


async def test_another_worker_at_the_endpoint_is_not_taken_for_it(core: Core) -> None:
    worker = await core.add(Role.BOTH)
    connection = core.connections[worker.address.worker]
    worker.address = Address(worker="stranger", epoch=9)
    await worker.stop()
    await worker.start()
    await eventually(lambda: "stranger" in connection.error or "refused" in connection.error)
    assert not connection.usable


async def test_frames_after_a_cancel_are_dropped(core: Core) -> None:
    worker = await core.add(Role.BOTH)
    connection = core.connections[worker.address.worker]
    core.cluster.scripts = [Script(tokens=[1] * 50, delay_s=0.005)]
    events: list[WorkerEvent] = []
    connection.submit(prefill(), events.append)
    await eventually(lambda: len(events) > 2)
    connection.cancel(RequestId("r"), "test")
    seen = len(events)
    await eventually(lambda: worker.cancelled() == ["r"])
    await asyncio.sleep(0.05)
    assert len(events) == seen


async def test_a_bad_endpoint_is_an_error_to_show_not_a_crash(core: Core) -> None:
    worker = await core.add(Role.BOTH)
    connection = core.connections[worker.address.worker]
    lease = worker.lease
    bad = WorkerLease(**{f: getattr(lease, f) for f in lease.__struct_fields__} | {"endpoint": "pigeon:1"})
    await worker.stop()
    connection.renew(bad)
    await eventually(lambda: "pigeon" in connection.error)
    assert connection.faults == 0
