"""What a trouble of the store means to the person who reads it, and what helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from controlplane.caching.alerts import POLICY_AHEAD
from workers.kvstore.health import Trouble


@dataclass(frozen=True, slots=True)
class Meaning:
    title: str
    effect: str
    remedy: str


MEANINGS: Final[dict[str, Meaning]] = {
    Trouble.INDEX_AWAY: Meaning(
        "Valkey does not answer", "Lookups miss, writes wait up to 30 s and are then dropped.", "Bring Valkey back."
    ),
    Trouble.INDEX_LOST: Meaning(
        "The index is empty",
        "Everything misses until one process has rebuilt it from the extents' headers.",
        "Wait; switch Valkey's persistence on.",
    ),
    Trouble.INDEX_FOREIGN: Meaning(
        "The index belongs to another store",
        "Everything misses; nothing is touched.",
        "Correct the folder, or rebuild.",
    ),
    Trouble.ROOT_MISSING: Meaning(
        "The store's folder is gone", "Everything misses; nothing is written or forgotten.", "Mount it."
    ),
    Trouble.ROOT_FOREIGN: Meaning("Another store is mounted", "Everything misses.", "Mount the right one."),
    Trouble.READ_ONLY: Meaning(
        "The file system is read-only", "Reads go on, writes are dropped.", "Mount it writable."
    ),
    Trouble.DISK_FULL: Meaning(
        "The disk is full",
        "Reads go on, writes are dropped; the store is swept.",
        "Free space or lower the budget.",
    ),
    Trouble.SLOW: Meaning(
        "The file system is slow", "Reads past their deadline count as misses.", "Look at the disk or the mount."
    ),
    Trouble.IO_ERROR: Meaning("Reads or writes fail", "What fails is a miss.", "Look at the disk."),
    Trouble.CORRUPT: Meaning(
        "Damaged extents", "They were dropped; no wrong byte was served.", "Run manage.py store verify --repair."
    ),
    Trouble.OVER_BUDGET: Meaning(
        "Pins exceed the budget", "Nothing else can stay for long.", "Remove pins, or raise the budget."
    ),
    POLICY_AHEAD: Meaning(
        "The index has a newer policy than the database",
        "Workers follow the one in the index.",
        "Open the policy and save it; the new version goes above.",
    ),
}


def meaning(trouble: str) -> Meaning:
    """Also for troubles that a newer worker reports."""
    return MEANINGS.get(trouble) or Meaning(trouble.replace("_", " "), "", "")
