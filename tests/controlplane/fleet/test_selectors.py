from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from controlplane.fleet import selectors, services
from controlplane.fleet.errors import UnknownNode
from controlplane.fleet.presentation import deployment_json, node_json, worker_json
from controlplane.fleet.selectors import NodePrice, WantedWorker
from tests.controlplane.fleet import factories
from workers.protocol import Role
from workers.spec import EngineSettings

pytestmark = [pytest.mark.integration, pytest.mark.django_db]

Queries = Callable[[int], AbstractContextManager[object]]


def test_what_a_node_shall_run() -> None:
    factories.node("n1")
    deployment = factories.deployment("chat")
    services.reconcile()
    assert deployment.revision is not None
    assert selectors.node_wanted("n1") == [
        WantedWorker(
            name=f"chat-{role}-0",
            role=role,
            deployment="chat",
            revision=deployment.revision.hash,
            model=factories.MODEL,
            engine=EngineSettings(),
            device="cpu",
            drain_deadline_s=30.0,
        )
        for role in (Role.DECODE, Role.PREFILL)
    ]


def test_an_unknown_node_is_not_a_node_without_work() -> None:
    with pytest.raises(UnknownNode):
        selectors.node_wanted("nowhere")


@pytest.mark.parametrize("size", [1, 5])
def test_reads_cost_the_same_whatever_their_size(size: int, django_assert_num_queries: Queries) -> None:
    factories.node("n1")
    for _ in range(size):
        factories.deployment(prefill=size, decode=size)
    services.reconcile()
    with django_assert_num_queries(2):
        assert len(selectors.node_wanted("n1")) == 2 * size * size
    with django_assert_num_queries(3):
        assert len([deployment_json(row) for row in selectors.deployments()]) == size
    with django_assert_num_queries(1):
        assert len([worker_json(row) for row in selectors.workers()]) == 2 * size * size
    with django_assert_num_queries(2):
        assert len([node_json(row) for row in selectors.nodes()]) == 1
    with django_assert_num_queries(1):
        selectors.node_prices()


def test_prices_of_nodes() -> None:
    factories.node("n1")
    assert selectors.node_prices() == {"n1": NodePrice(micro_usd_per_card_hour=50_000, cards=1)}
