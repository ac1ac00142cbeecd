"""Stopping in order, within DEADLINE_S: no new work, engines by request of their agent, the rest, the services last."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from controlplane.launcher.instance import Instance
from controlplane.launcher.process import ProcessRecord, kill_group, send, wait_gone
from controlplane.launcher.programs import AGENT, BEAT, CONTROL, GATEWAY
from controlplane.launcher.supervisor import Supervisor

DEADLINE_S = 15.0
_REQUEST_S, _ENGINES_BY_S, _OTHERS_BY_S, _SERVICES_BY_S = 5.0, 7.5, 10.0, 13.5
"""Seconds from the start until which: the agent may be asked, engines drain, everything else ends, services end."""
_LEAST_GRACE_S = 0.25
_SERVICES = ("valkey", "postgres")


def stop_supervised(supervisor: Supervisor, instance: Instance, request_engine_stop: Callable[[float], None]) -> None:
    """The launcher's own way down. `request_engine_stop(timeout_s)` asks the agent to stop every engine."""
    started = time.monotonic()
    supervisor.signal(GATEWAY, BEAT, CONTROL)
    if AGENT in supervisor.running() and instance.engines():
        request_engine_stop(_REQUEST_S)
        while instance.engines() and time.monotonic() < started + _ENGINES_BY_S:
            time.sleep(0.1)
    others = [name for name in supervisor.names() if name not in _SERVICES]
    supervisor.stop(*others, within_s=started + _OTHERS_BY_S - time.monotonic())
    stop_engines(instance)
    supervisor.stop(*_SERVICES, within_s=started + _SERVICES_BY_S - time.monotonic())


def stop_leftovers(instance: Instance, *, engines: bool, until: float | None = None) -> int:
    """Stop what a launcher that was killed left running, by `until` (monotonic); how many processes that were.

    The agent goes before its engines, so that it does not start them again. The less time is left, the sooner what
    does not go by itself is killed.
    """
    end = time.monotonic() + DEADLINE_S if until is None else until

    def grace(most_s: float, *, keep_s: float) -> float:
        return max(_LEAST_GRACE_S, min(most_s, end - keep_s - time.monotonic()))

    records = instance.registry.read()
    alive = {name: record for name, record in records.items() if record.process() is not None}
    services = {name: record for name, record in alive.items() if name in _SERVICES}
    others = {name: record for name, record in alive.items() if name not in _SERVICES}
    _stop_records(others, grace_s=grace(4.0, keep_s=10.0))
    stopped = len(alive) + (stop_engines(instance, within_s=grace(2.0, keep_s=7.0)) if engines else 0)
    _stop_records(services, grace_s=grace(5.0, keep_s=1.0))
    for name, record in records.items():
        kill_group(record)  # members that outlived their leader
        instance.registry.remove(name)
    return stopped


def stop_engines(instance: Instance, within_s: float = 2.0) -> int:
    """End worker processes now: they are nobody's children any more. How many there were."""
    engines = instance.engines()
    for _ in range(2):  # the first SIGTERM drains, the second ends at once
        for record in engines:
            send(record, signal.SIGTERM)
        time.sleep(0.05 if engines else 0)
    for record in wait_gone(engines, within_s):
        kill_group(record)
        send(record, signal.SIGKILL)
    wait_gone(engines, 1.0)
    return len(engines)


def _stop_records(records: dict[str, ProcessRecord], grace_s: float) -> None:
    for name, record in records.items():
        send(record, signal.SIGINT if name == "postgres" else signal.SIGTERM)
    for record in wait_gone(records.values(), grace_s):
        kill_group(record)
    wait_gone(records.values(), 1.0)
