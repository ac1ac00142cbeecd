"""Which pair a request gets."""

from __future__ import annotations

import random

import pytest

from controlplane.inference.affinity import PrefixAffinity, prefixes
from controlplane.inference.router import NoWorkers, Router
from tests.controlplane.inference.conftest import Core, eventually
from workers.protocol import Address, Role

PROMPT = list(range(1000, 1400))


def pick(core: Core, router: Router, tokens: list[int] = PROMPT, revision: str = ""):  # type: ignore[no-untyped-def]
    return router.pick(
        deployment="tiny", revision=revision or core.cluster.revision, tokens=tokens, salt=b"s", exclude=()
    )


async def test_the_least_busy_of_two(core: Core) -> None:
    busy, idle = await core.add(Role.PREFILL), await core.add(Role.PREFILL)
    await core.add(Role.DECODE)
    busy.waiting_tokens = 5000
    busy.say_status()
    await eventually(lambda: core.connections[busy.address.worker].status.waiting_tokens == 5000)  # type: ignore[union-attr]
    router = Router(core.connections.values, rng=random.Random(1))
    assert {pick(core, router, [i]).prefill.worker for i in range(10)} == {idle.address.worker}


async def test_a_prefix_goes_where_it_was(core: Core) -> None:
    for _ in range(4):
        await core.pair()
    router = Router(core.connections.values, rng=random.Random(1))
    first = pick(core, router)
    for _ in range(10):
        again = pick(core, router, [*PROMPT, 1, 2, 3])
        assert again.addresses() == first.addresses()


async def test_a_busy_holder_loses_its_prefixes(core: Core) -> None:
    for _ in range(3):
        await core.pair()
    router = Router(core.connections.values, rng=random.Random(1))
    first = pick(core, router)
    worker = core.cluster.worker(first.prefill.worker)
    worker.waiting_tokens = 100_000
    worker.say_status()
    await eventually(lambda: first.prefill.status.waiting_tokens == 100_000)
    assert pick(core, router).prefill.worker != first.prefill.worker


async def test_pairs_are_of_one_revision(core: Core) -> None:
    await core.add(Role.PREFILL)
    core.cluster.revision = "f" * 64
    await core.add(Role.DECODE)
    with pytest.raises(NoWorkers):
        pick(core, core.router)
    await core.add(Role.PREFILL)
    pair = pick(core, core.router, revision="0" * 64)
    assert pair.decode is not None
    assert pair.prefill.revision == pair.decode.revision == "f" * 64


async def test_other_deployments_workers_are_not_used(core: Core) -> None:
    core.cluster.deployment = "other"
    await core.add(Role.BOTH)
    with pytest.raises(NoWorkers):
        pick(core, core.router)


def test_prefixes_are_of_fixed_lengths_and_scoped() -> None:
    found = prefixes(list(range(1200)), b"a")
    assert [prefix.tokens for prefix in found] == [64, 128, 192, 256, 320, 384, 448, 512, 1024]
    assert found[0].digest == prefixes(list(range(64)), b"a")[0].digest
    assert found[0].digest != prefixes(list(range(64)), b"b")[0].digest
    assert prefixes(list(range(63)), b"a") == []


def test_the_map_is_bounded_and_forgets_tails_first() -> None:
    affinity = PrefixAffinity(capacity=4)
    address = Address(worker="w", epoch=1)
    long = prefixes(list(range(320)), b"a")
    affinity.record(long, [address])
    assert len(affinity) == 4
    assert affinity.matched(long[:1]) == {address: 64}
    assert affinity.matched(long) == {address: 256}
