"""The supervisor over real processes: start, restart, back-off, drain, adoption, hangs. No services needed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.workers.certificates import secret_file
from tests.workers.fake_engine import expected
from tests.workers.node.factories import Stage, free_ports, kill_all, running_pids, wanted
from tests.workers.protocol_client import Client, Pair, prefill_frame
from workers.home import Home
from workers.network.security import LinkSecurity
from workers.node import processes
from workers.node.endpoints import NodeNetwork
from workers.node.records import Records
from workers.node.reports import State
from workers.node.timing import Timing
from workers.protocol import Role
from workers.spec import TransferChoice

PROMPT = list(range(1, 19))


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="galley-") as folder:
        yield Home(Path(folder))
        kill_all(Path(folder))


async def test_a_wanted_worker_is_started_and_becomes_ready(home: Home) -> None:
    stage = Stage(home)
    await stage.ready(wanted("w", home))
    states = list(dict.fromkeys(report.state for report in stage.history))
    assert states[0] is State.STARTING
    assert states[-1] is State.READY
    assert running_pids(home) == [stage.pid("w")]
    assert os.getsid(stage.pid("w")) == stage.pid("w")


async def test_states_on_the_way_carry_reason_and_deadline(home: Home) -> None:
    stage = Stage(home)
    await stage.ready(wanted("w", home, model="fake?load_s=1.5"))
    passing = {report.state: report for report in stage.history if report.state is not State.READY}
    assert set(passing) == {State.STARTING, State.LOADING}
    assert all(report.reason and report.deadline for report in passing.values())


async def test_a_killed_worker_comes_back_with_a_larger_epoch(home: Home) -> None:
    stage = Stage(home)
    worker = wanted("w", home)
    await stage.ready(worker)
    first = stage.said["w"]
    os.kill(stage.pid("w"), signal.SIGKILL)
    await stage.until(lambda: stage.said["w"].epoch > first.epoch, worker)
    await stage.ready(worker)
    assert stage.pid("w") != first.pid
    assert stage.said["w"].restarts == 1


async def test_epochs_grow_even_when_the_clock_was_ahead(home: Home) -> None:
    records = Records(home)
    (home.worker_state("w")).mkdir(parents=True)
    (home.worker_state("w") / "epoch").write_text("99999999999")
    assert records.next_epoch("w") == 100000000000
    assert records.next_epoch("w") == 100000000001
    (home.worker_state("w") / "epoch").write_text("rubbish")
    assert records.next_epoch("w") > 1_700_000_000


async def test_an_unwanted_worker_drains_and_is_removed(home: Home) -> None:
    stage = Stage(home)
    worker = wanted("w", home, model="fake?step_s=0.02")
    await stage.ready(worker)
    client = await Client.connect(stage.said["w"].endpoint.removeprefix("unix:"))
    client.send(prefill_frame("a", client.welcome, PROMPT, 30))
    await client.until(lambda: client.about("a").tokens)
    await stage.emptied(stopping=False)
    assert stage.removed == ["w"]
    assert len(client.about("a").tokens) == 30
    assert stage.history[-1].state is State.DRAINING
    assert running_pids(home) == []


async def test_what_does_not_drain_is_told_again_and_then_killed(home: Home) -> None:
    stage = Stage(home)
    worker = wanted("w", home, drain_s=0.5)
    await stage.ready(worker)
    os.kill(stage.pid("w"), signal.SIGSTOP)
    await stage.emptied(stopping=False)
    assert running_pids(home) == []


async def test_emptying_the_node_does_not_wait_for_long_requests(home: Home) -> None:
    stage = Stage(home)
    worker = wanted("w", home, model="fake?step_s=0.2", drain_s=300.0)
    await stage.ready(worker)
    client = await Client.connect(stage.said["w"].endpoint.removeprefix("unix:"))
    client.send(prefill_frame("a", client.welcome, PROMPT, 200))
    await client.until(lambda: client.about("a").tokens)
    await stage.until(lambda: not stage.supervisor.workers, stopping=True, timeout_s=15.0)
    assert running_pids(home) == []


async def test_another_specification_replaces_the_process(home: Home) -> None:
    stage = Stage(home)
    await stage.ready(wanted("w", home))
    first = stage.said["w"]
    changed = msgspec.structs.replace(wanted("w", home), revision="r2")
    await stage.until(lambda: stage.said["w"].epoch > first.epoch, changed)
    await stage.ready(changed)
    assert State.DRAINING in {report.state for report in stage.history}


async def test_a_restarted_agent_adopts_and_restarts_nothing(home: Home) -> None:
    stage = Stage(home)
    workers = [wanted("p", home, role=Role.PREFILL), wanted("d", home, role=Role.DECODE)]
    await stage.ready(*workers)
    before = {name: (report.pid, report.epoch) for name, report in stage.said.items()}
    stage = stage.again()
    await stage.ready(*workers)
    assert {name: (report.pid, report.epoch) for name, report in stage.said.items()} == before
    os.kill(stage.pid("d"), signal.SIGKILL)  # nobody's child any more: found by pid and create time
    await stage.until(lambda: stage.said["d"].pid != before["d"][0], *workers)
    await stage.ready(*workers)


async def test_a_worker_of_long_ago_is_adopted_and_not_taken_for_one_that_does_not_greet(home: Home) -> None:
    stage = Stage(home)
    worker = wanted("w", home)
    await stage.ready(worker)
    first = stage.said["w"]
    record = Records(home).read_process("w")
    assert record is not None
    record.started_at -= 3600.0
    Records(home).write_process("w", record)
    stage = stage.again()
    await stage.ready(worker)
    assert (stage.said["w"].pid, stage.said["w"].epoch) == (first.pid, first.epoch)
    assert {report.state for report in stage.history} == {State.READY}


async def test_an_old_process_is_adopted_with_time_to_greet(home: Home) -> None:
    stage = Stage(home)
    worker = wanted("w", home)
    await stage.ready(worker)
    first = stage.said["w"]
    record = Records(home).read_process("w")
    assert record is not None
    record.started_at -= 3600
    Records(home).write_process("w", record)
    stage = stage.again()
    await stage.ready(worker)
    assert {(report.pid, report.epoch, report.state) for report in stage.history} == {
        (first.pid, first.epoch, State.READY)
    }


async def test_a_process_that_was_never_recorded_is_adopted(home: Home) -> None:
    stage = Stage(home)
    worker = wanted("w", home)
    await stage.ready(worker)
    first = stage.said["w"]
    Records(home).forget_process("w")  # as if the agent had died before writing it
    stage = stage.again()
    await stage.ready(worker)
    assert (stage.said["w"].pid, stage.said["w"].epoch) == (first.pid, first.epoch)


async def test_a_reused_pid_is_not_taken_for_the_worker(home: Home) -> None:
    stage = Stage(home)
    worker = wanted("w", home)
    await stage.ready(worker)
    record = Records(home).read_process("w")
    assert record is not None
    record.pid, record.create_time = os.getpid(), 1.0
    assert not processes.alive(record)
    assert not processes.send(record, signal.SIGKILL)


async def test_draining_goes_on_across_a_restart_of_the_agent(home: Home) -> None:
    stage = Stage(home, Timing(turn_s=0.05))
    worker = wanted("w", home, model="fake?step_s=0.03", drain_s=60.0)
    await stage.ready(worker)
    client = await Client.connect(stage.said["w"].endpoint.removeprefix("unix:"))
    client.send(prefill_frame("a", client.welcome, PROMPT, 40))
    await client.until(lambda: client.about("a").tokens)
    await stage.until(lambda: stage.state("w") is State.DRAINING)
    stage = stage.again()
    await stage.emptied(stopping=False)
    assert len(client.about("a").tokens) == 40


async def test_a_crash_loop_is_reported_with_its_cause_and_slows_down(home: Home) -> None:
    stage = Stage(home)
    worker = wanted("w", home, model="fake?fail_load=1")
    await stage.until(lambda: stage.state("w") is State.FAILED, worker)
    report = stage.said["w"]
    assert "exit status 3" in report.reason
    assert "told to fail" in report.reason
    assert report.next_check is not None


def test_back_off_doubles_up_to_its_most() -> None:
    timing = Timing()
    assert [timing.back_off(n) for n in (0, 1, 2, 3, 4, 20)] == [0.0, 0.0, 1.0, 2.0, 4.0, 60.0]


async def test_one_worker_that_cannot_be_started_does_not_stop_the_others(home: Home) -> None:
    stage = Stage(home)
    (home.state / "workers").mkdir(parents=True)
    (home.state / "workers" / "bad").write_text("a file where a folder should be")
    good = wanted("good", home)
    await stage.until(lambda: stage.state("good") is State.READY, wanted("bad", home), good)
    assert stage.supervisor.faults > 0


@pytest.mark.parametrize("how", ["hang", "stop"])
async def test_a_worker_without_signs_of_life_is_reported_and_restarted(home: Home, how: str) -> None:
    stage = Stage(home)
    worker = wanted("w", home, model="fake?hang_at=3" if how == "hang" else "fake")
    await stage.ready(worker)
    first = stage.said["w"]
    client = await Client.connect(first.endpoint.removeprefix("unix:"))
    if how == "hang":
        client.send(prefill_frame("a", client.welcome, PROMPT, 40))
    else:
        os.kill(stage.pid("w"), signal.SIGSTOP)
    await stage.until(lambda: stage.state("w") is State.PENDING and stage.said["w"].pid == first.pid, worker)
    assert stage.said["w"].deadline is not None
    assert ("hangs" if how == "hang" else "not answer") in stage.said["w"].reason
    await stage.until(lambda: stage.said["w"].epoch > first.epoch, worker)
    await stage.ready(worker)


async def test_a_worker_that_answers_again_in_time_is_left_alone(home: Home) -> None:
    stage = Stage(home, Timing(turn_s=0.05, silent_s=2.5))
    worker = wanted("w", home)
    await stage.ready(worker)
    first = stage.said["w"]
    os.kill(stage.pid("w"), signal.SIGSTOP)
    await stage.until(lambda: stage.state("w") is State.PENDING, worker)
    os.kill(stage.pid("w"), signal.SIGCONT)
    await stage.ready(worker)
    assert stage.said["w"].pid == first.pid


async def test_an_agent_that_stood_still_blames_nobody(home: Home) -> None:
    stage = Stage(home, Timing(turn_s=0.05, silent_s=2.5, hung_s=4.0))
    worker = wanted("w", home)
    await stage.ready(worker)
    first, said = stage.pid("w"), len(stage.history)
    time.sleep(5.0)  # noqa: ASYNC251 - nothing of this process runs, its ears neither
    await stage.until(lambda: len(stage.history) > said, worker)
    assert (stage.state("w"), stage.pid("w")) == (State.READY, first)


async def test_a_pager_on_a_specification_is_no_worker(home: Home) -> None:
    stage = Stage(home)
    worker = wanted("w", home)
    await stage.ready(worker)
    pid, path = stage.pid("w"), Records(home).spec_path("w")
    ours, own_session = pager(path, own_session=False), pager(path, own_session=True)
    try:
        assert running_pids(home) == [pid]
        Records(home).forget_process("w")
        assert ours.pid not in running_pids(home)
    finally:
        for process in (ours, own_session):
            process.kill()
            process.wait()
    assert running_pids(home) == [pid]


def pager(path: Path, *, own_session: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "import time; time.sleep(300)", str(path)]
    return subprocess.Popen(command, start_new_session=own_session)


async def test_a_process_that_cannot_be_written_down_does_not_stay(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(home)
    started: list[subprocess.Popen[bytes]] = []
    spawn = processes.spawn

    def noted(*arguments: object) -> subprocess.Popen[bytes]:
        started.append(spawn(*arguments))  # type: ignore[arg-type]
        return started[-1]

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(processes, "spawn", noted)
    monkeypatch.setattr(Records, "write_process", full)
    await stage.until(lambda: len(started) > 1, wanted("w", home))
    assert all(popen.poll() is not None for popen in started)
    assert stage.supervisor.running == 0


async def test_the_last_resort_stops_everything(home: Home) -> None:
    stage = Stage(home)
    workers = [wanted("p", home), wanted("d", home)]
    await stage.ready(*workers)
    os.kill(stage.pid("d"), signal.SIGSTOP)
    stage.supervisor.close()
    kill_all(home.root)
    assert running_pids(home) == []


def test_a_log_that_grew_is_rotated(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LOG_BYTES", 100)
    log = home.worker_log("w")
    log.parent.mkdir(parents=True)
    with log.open("ab", buffering=0) as writer:
        writer.write(b"x" * 200)
        processes.rotate(log)
        writer.write(b"y")
    assert log.read_bytes() == b"y"
    assert log.with_name("w.log.1").read_bytes() == b"x" * 200


async def test_a_name_too_long_for_a_socket_still_gets_one(home: Home) -> None:
    stage = Stage(home)
    worker = wanted("w" * 63, home)
    await stage.ready(worker)
    assert len(stage.said[worker.name].endpoint) < 107


async def test_a_full_disk_keeps_nothing_from_being_stopped(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(home)
    await stage.ready(wanted("w", home))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Records, "write_process", full)
    await stage.emptied()
    assert running_pids(home) == []
    assert stage.supervisor.faults == 1


async def test_workers_on_tcp_serve_and_are_adopted(home: Home, tmp_path: Path) -> None:
    security = LinkSecurity(secret_file=secret_file(tmp_path))
    first, last = free_ports(2)
    network = NodeNetwork.of(
        listen="tcp:127.0.0.1", ports=f"{first}-{last}", advertise="", security=security, transfer=TransferChoice.TCP
    )
    stage = Stage(home, network=network)
    pair = [wanted("p", home, role=Role.PREFILL), wanted("d", home, role=Role.DECODE)]
    await stage.ready(*pair)
    endpoints = [stage.said[worker.name].endpoint for worker in pair]
    assert sorted(endpoints) == [f"tcp:127.0.0.1:{first}", f"tcp:127.0.0.1:{last}"]
    stage.supervisor.close()
    again = Stage(home, network=network)
    again.supervisor.adopt()
    await again.ready(*pair)
    assert [again.said[worker.name].endpoint for worker in pair] == endpoints
    clients = [await Client.connect(endpoint, security=security) for endpoint in endpoints]
    transfer = Pair(clients[0], clients[1], endpoints[0])
    transfer.start("a", PROMPT, 5)
    assert await transfer.finished("a") == expected(PROMPT, 5)
    await again.emptied()
