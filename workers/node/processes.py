"""Worker processes: started in a session of their own, found again, signalled. Linux and other POSIX systems."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from workers.home import Home
from workers.node.records import ProcessRecord, Records, Wanted

ROOT = Path(__file__).resolve().parents[2]
SERVE = (sys.executable, "-m", "workers.serve")
"""What is run, with the path of its specification behind it."""
CREATE_TIME_TOLERANCE_S = 2.0
"""psutil derives create times from the boot time, which moves a little when the clock is set."""
LOG_BYTES = 32 * 1024 * 1024
"""A log grows to this and is then kept as `.1`, replacing the one before."""
_NOT_FOR_ENGINES = ("DATABASE_URL",)


def spawn(command: Sequence[str], spec_path: Path, log: Path) -> subprocess.Popen[bytes]:
    """The worker outlives its agent: own session, no pipe to it. Output is appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_ENGINES}
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            [*command, str(spec_path)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


def create_time(pid: int) -> float:
    """Raises ProcessLookupError where it is gone already."""
    try:
        return psutil.Process(pid).create_time()
    except (psutil.NoSuchProcess, psutil.AccessDenied) as error:
        raise ProcessLookupError(f"process {pid} is gone") from error


def alive(record: ProcessRecord) -> bool:
    """Whether this very process runs; a zombie does not."""
    try:
        process = psutil.Process(record.pid)
        same = abs(process.create_time() - record.create_time) <= CREATE_TIME_TOLERANCE_S
        return same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # what we may not look at is nothing that we started
        return False


def send(record: ProcessRecord, number: signal.Signals) -> bool:
    """Signal the process; for SIGKILL its whole group. False where it was gone."""
    if not alive(record):
        return False
    try:
        if number is signal.SIGKILL and record.pid == os.getpgid(record.pid):
            os.killpg(record.pid, number)
        else:
            os.kill(record.pid, number)
    except ProcessLookupError:
        return False
    return True


def find_unrecorded(records: Records) -> list[tuple[str, ProcessRecord]]:
    """Workers whose agent died between starting them and writing that down: their command line names their spec.

    So does that of a pager or an editor: only the first process of a session can be a worker (`spawn`), and none is
    looked for beside a recorded one that runs.
    """
    by_path = {str(records.spec_path(name)): name for name in records.names()}
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "create_time", "status"]):
        line = process.info["cmdline"] or []
        name = by_path.get(line[-1]) if line else None
        if name is None or process.info["status"] == psutil.STATUS_ZOMBIE or not _leads_session(process.info["pid"]):
            continue
        known = records.read_process(name)
        spec = records.read_spec(name)
        if spec is None or (known is not None and alive(known)):
            continue
        wanted = Wanted(
            name=name,
            role=spec.role,
            deployment=spec.deployment,
            revision=spec.revision,
            model=spec.model,
            model_path=spec.model_path,
            engine=spec.engine,
            device=spec.device,
            drain_deadline_s=spec.drain_deadline_s,
        )
        record = ProcessRecord(
            pid=process.info["pid"],
            create_time=process.info["create_time"],
            epoch=spec.address.epoch,
            endpoint=spec.endpoint,
            local=spec.network.local,
            wanted=wanted,
            started_at=process.info["create_time"],
        )
        found.append((name, record))
    return found


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except OSError:  # gone, or not ours
        return False


def running(home: Home) -> list[tuple[str, ProcessRecord]]:
    """Every worker process of this data folder, recorded or not."""
    records = Records(home)
    recorded = [(name, record) for name in records.names() if (record := records.read_process(name)) and alive(record)]
    return recorded + find_unrecorded(records)


def wait_gone(found: Sequence[ProcessRecord], timeout_s: float) -> list[ProcessRecord]:
    """Those that still run when the time is over."""
    until = time.monotonic() + timeout_s
    left = [record for record in found if alive(record)]
    while left and time.monotonic() < until:
        time.sleep(0.05)
        left = [record for record in left if alive(record)]
    return left


def rotate(log: Path) -> None:
    """Keep a worker's log bounded. The worker appends, so after the truncation it goes on at the start."""
    try:
        if log.stat().st_size <= LOG_BYTES:
            return
    except FileNotFoundError:
        return
    temporary = log.with_name(log.name + ".tmp")
    with log.open("rb") as source, temporary.open("wb") as target:
        target.writelines(iter(lambda: source.read(1 << 20), b""))
    temporary.replace(log.with_name(log.name + ".1"))
    os.truncate(log, 0)


def last_complaint(log: Path, epoch: int) -> str:
    """The last thing that a process said was critical (or else an error); empty where the log's tail has none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16384))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    said = {}
    for line in lines:
        try:
            entry = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(entry, dict) and entry.get("epoch") == epoch:
            said[entry.get("level")] = str(entry.get("event", ""))
    return (said.get("critical") or said.get("error") or "")[:300]


def how_it_ended(code: int | None, log: Path, epoch: int) -> str:
    """For people: the return code of a process (None: it was not our child), and what it complained of."""
    if code is None:
        return "status unknown, it was adopted"
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    complaint = last_complaint(log, epoch) if code else ""
    return f"exit status {code}" + (f": {complaint}" if complaint else "")


def cores() -> int:
    """Processors that this host's workers may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
