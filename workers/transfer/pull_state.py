"""What the decode side knows of one request before it decodes."""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field

from workers.engine.api import EngineRequest, Reservation
from workers.protocol import ErrorCode, StateReady
from workers.transfer.base import BlockSource, FrameSink
from workers.transfer.sections import IncomingSections


class PullPhase(enum.StrEnum):
    DIALLING = "dialling"
    QUEUED = "queued"
    """Subscribed; ends with `Reserve` or the request's deadline."""
    RESERVING = "reserving"
    """The engine is asked for room."""
    FILLING = "filling"
    """Credit was given; blocks arrive and are copied."""
    ACTIVATING = "activating"


@dataclass(slots=True)
class Announced:
    index: int
    slot: int
    generation: int


@dataclass(slots=True, eq=False)
class PullState:
    request: EngineRequest
    blocks_needed: int
    phase: PullPhase = PullPhase.DIALLING
    until: float = float("inf")
    link: FrameSink | None = None
    source: BlockSource | None = None
    reservation: Reservation | None = None
    refusals: int = 0
    """How often the engine had no room."""
    pending: deque[Announced] = field(default_factory=deque)
    filled: set[int] = field(default_factory=set)
    sections: IncomingSections = field(default_factory=IncomingSections)
    state: StateReady | None = None
    state_at: float = 0.0
    copying: bool = False
    failure: tuple[ErrorCode, str] | None = None
    """Set once: the pull ends with it as soon as nothing is being copied."""


@dataclass(slots=True)
class PullCounters:
    transferred_blocks: int = 0
    skipped_blocks: int = 0
    stale_blocks: int = 0
    failed: int = 0
    faults: int = 0
