from __future__ import annotations

import pytest

from controlplane.fleet.statuses import (
    COLOURS,
    DEPLOYMENT_COLOURS,
    DeploymentState,
    RoleChoices,
    WorkerStatus,
    transition_allowed,
)
from workers.protocol import Role, WorkerState

S = WorkerStatus


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (S.PENDING, S.STARTING),
        (S.STARTING, S.LOADING),
        (S.LOADING, S.READY),
        (S.READY, S.DRAINING),
        (S.DRAINING, S.STOPPED),
        (S.PENDING, S.READY),  # adopted
        (S.READY, S.LOST),
        (S.LOST, S.READY),  # it answers again
        (S.FAILED, S.PENDING),
        (S.READY, S.READY),
    ],
)
def test_what_may_follow_within_one_process(old: WorkerStatus, new: WorkerStatus) -> None:
    assert transition_allowed(old, new, new_process=False)


@pytest.mark.parametrize(
    ("old", "new"),
    [(S.READY, S.LOADING), (S.DRAINING, S.READY), (S.STOPPED, S.READY), (S.LOADING, S.STARTING), (S.FAILED, S.READY)],
)
def test_a_process_does_not_go_back_but_a_new_one_may_be_there(old: WorkerStatus, new: WorkerStatus) -> None:
    assert not transition_allowed(old, new, new_process=False)
    assert transition_allowed(old, new, new_process=True)


def test_a_new_process_is_no_reason_to_be_lost_or_pending() -> None:
    assert not transition_allowed(S.STOPPED, S.LOST, new_process=True)


def test_each_state_is_final_or_on_the_way_and_has_a_colour() -> None:
    assert S.final() | S.on_the_way() == set(S)
    assert not S.final() & S.on_the_way()
    assert set(COLOURS) == set(S)
    assert set(DEPLOYMENT_COLOURS) == set(DeploymentState)


def test_the_words_are_those_of_the_protocol() -> None:
    assert {role.value for role in Role} == set(RoleChoices.values)
    assert {state.value for state in WorkerState} <= set(S.values)
