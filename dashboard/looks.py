"""How states look to a browser: label and colour of the fleet's enums, once, for templates and scripts."""

from __future__ import annotations

from controlplane.fleet.statuses import WorkerStatus


def worker_states() -> dict[str, dict[str, str]]:
    """State to `{label, colour}`; colours are the names that styles/components.css knows."""
    return {status.value: {"label": str(status.label), "colour": status.colour.value} for status in WorkerStatus}
