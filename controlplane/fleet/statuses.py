"""States of workers and deployments: label, colour, sets, and which transition may follow which."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from django.db import models

from workers.protocol import Role

__all__ = ["COLOURS", "DeploymentState", "Desired", "Role", "RoleChoices", "WorkerStatus", "transition_allowed"]


class Colour(enum.StrEnum):
    """Meaning, not paint: the dashboard maps each to its palette."""

    GREY = "grey"
    BLUE = "blue"
    GREEN = "green"
    AMBER = "amber"
    RED = "red"


class RoleChoices(models.TextChoices):
    PREFILL = Role.PREFILL.value, "Prefill"
    DECODE = Role.DECODE.value, "Decode"
    BOTH = Role.BOTH.value, "Prefill and decode"


class Desired(models.TextChoices):
    RUNNING = "running", "Running"
    STOPPED = "stopped", "Stopped"


class WorkerStatus(models.TextChoices):
    PENDING = "pending", "Pending"
    STARTING = "starting", "Starting"
    LOADING = "loading", "Loading"
    READY = "ready", "Ready"
    DRAINING = "draining", "Draining"
    STOPPED = "stopped", "Stopped"
    FAILED = "failed", "Failed"
    LOST = "lost", "Lost"

    @property
    def colour(self) -> Colour:
        return COLOURS[self]

    @classmethod
    def with_process(cls) -> frozenset[WorkerStatus]:
        """A process exists, as far as we know."""
        return frozenset({cls.STARTING, cls.LOADING, cls.READY, cls.DRAINING})

    @classmethod
    def on_the_way(cls) -> frozenset[WorkerStatus]:
        """Passing states: each carries what it waits for, when that is looked at next, and until when it may last."""
        return frozenset({cls.PENDING, cls.STARTING, cls.LOADING, cls.DRAINING, cls.FAILED, cls.LOST})

    @classmethod
    def final(cls) -> frozenset[WorkerStatus]:
        return frozenset({cls.READY, cls.STOPPED})


COLOURS: Final[Mapping[WorkerStatus, Colour]] = {
    WorkerStatus.PENDING: Colour.GREY,
    WorkerStatus.STARTING: Colour.BLUE,
    WorkerStatus.LOADING: Colour.BLUE,
    WorkerStatus.READY: Colour.GREEN,
    WorkerStatus.DRAINING: Colour.AMBER,
    WorkerStatus.STOPPED: Colour.GREY,
    WorkerStatus.FAILED: Colour.RED,
    WorkerStatus.LOST: Colour.RED,
}

_S = WorkerStatus
_WITHIN_ONE_PROCESS: Final[Mapping[WorkerStatus, frozenset[WorkerStatus]]] = {
    _S.PENDING: frozenset({_S.STARTING, _S.LOADING, _S.READY, _S.DRAINING, _S.STOPPED, _S.FAILED, _S.LOST}),
    _S.STARTING: frozenset({_S.PENDING, _S.LOADING, _S.READY, _S.DRAINING, _S.STOPPED, _S.FAILED, _S.LOST}),
    _S.LOADING: frozenset({_S.PENDING, _S.READY, _S.DRAINING, _S.STOPPED, _S.FAILED, _S.LOST}),
    _S.READY: frozenset({_S.PENDING, _S.DRAINING, _S.STOPPED, _S.FAILED, _S.LOST}),
    _S.DRAINING: frozenset({_S.PENDING, _S.STOPPED, _S.FAILED, _S.LOST}),
    _S.STOPPED: frozenset({_S.PENDING, _S.FAILED}),
    _S.FAILED: frozenset({_S.PENDING, _S.STOPPED, _S.LOST}),
    # A worker that was given up and answers again is what it says it is: state comes from fresh observations.
    _S.LOST: frozenset({_S.PENDING, _S.STARTING, _S.LOADING, _S.READY, _S.DRAINING, _S.STOPPED, _S.FAILED}),
}
"""A process only goes forward; `pending` and `failed` say that it is gone and another is waited for."""

_NEW_PROCESS: Final = frozenset({_S.STARTING, _S.LOADING, _S.READY, _S.DRAINING, _S.STOPPED, _S.FAILED})


def transition_allowed(old: WorkerStatus, new: WorkerStatus, *, new_process: bool) -> bool:
    """Whether `new` may follow `old`. `new_process`: it is said of a larger epoch, so anything may have passed."""
    return old is new or new in _WITHIN_ONE_PROCESS[old] or (new_process and new in _NEW_PROCESS)


class DeploymentState(models.TextChoices):
    PENDING = "pending", "Pending"
    PROGRESSING = "progressing", "Progressing"
    READY = "ready", "Ready"
    DEGRADED = "degraded", "Degraded"
    STOPPED = "stopped", "Stopped"
    DELETING = "deleting", "Deleting"

    @property
    def colour(self) -> Colour:
        return DEPLOYMENT_COLOURS[self]


DEPLOYMENT_COLOURS: Final[Mapping[DeploymentState, Colour]] = {
    DeploymentState.PENDING: Colour.GREY,
    DeploymentState.PROGRESSING: Colour.BLUE,
    DeploymentState.READY: Colour.GREEN,
    DeploymentState.DEGRADED: Colour.RED,
    DeploymentState.STOPPED: Colour.GREY,
    DeploymentState.DELETING: Colour.AMBER,
}
