"""What a worker says of its KV store in snapshots: troubles for alerts, counters and queues for metrics."""

from __future__ import annotations

from workers.kvstore.store import StoreStatus


def troubles(status: StoreStatus | None) -> dict[str, str]:
    """What is wrong now, and why."""
    return {} if status is None else {ailment.trouble.value: ailment.reason for ailment in status.ailments}


def store_events(status: StoreStatus | None) -> dict[str, int]:
    """Counters since the process's start: blocks and bytes read and written, and whatever was dropped, by reason."""
    return {} if status is None else {f"store.{name}": count for name, count in status.counters.items()}


def store_gauges(status: StoreStatus | None) -> dict[str, float]:
    if status is None:
        return {}
    return {
        "store.reads_waiting": float(status.reads_waiting),
        "store.reads_busy": float(status.reads_busy),
        "store.writes_waiting": float(status.writes_waiting),
        "store.write_bytes_waiting": float(status.write_bytes_waiting),
        "store.policy_version": float(status.policy_version),
        "age.store_policy_s": status.policy_age_s,
        "age.store_maintenance_s": status.maintenance_age_s,
    }
