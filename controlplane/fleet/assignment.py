"""Which node a new worker goes to: the living one with most room of the right kind."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.fleet.models import Node, Worker
from controlplane.fleet.specification import RevisionSpec


def choose_node(
    worker: Worker, live: Sequence[Node], known: Sequence[Node], workers: Sequence[Worker]
) -> tuple[Node | None, str]:
    """(node, "") or (None, why not). Processors are shared when they run out; cards never are."""
    if not known:
        return None, "no node is registered; start a node agent"
    if not live:
        return None, f"none of {len(known)} nodes is living and open for work; the agents must come back first"
    profile = RevisionSpec.from_json(worker.pool.revision.spec).profile
    fitting = [node for node in live if profile is None or node.profile.name == profile]
    if not fitting:
        return None, f"none of {len(live)} living nodes has the hardware profile {profile}"
    needed = worker.pool.ranks
    room = {node.name: _room(node, workers) for node in fitting}
    with_room = [node for node in fitting if node.profile.device == "cpu" or room[node.name] >= needed]
    if not with_room:
        return None, f"{needed} free cards are needed; the living nodes have {max(room.values())} at most"
    return max(with_room, key=lambda node: (room[node.name], node.name)), ""


def _room(node: Node, workers: Sequence[Worker]) -> int:
    """Processors or cards without a worker; negative where processors are shared. Retiring workers still use theirs."""
    capacity = node.cores if node.profile.device == "cpu" else node.profile.cards_per_node
    return capacity - sum(worker.pool.ranks for worker in workers if worker.node_id == node.pk)
