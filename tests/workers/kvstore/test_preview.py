from __future__ import annotations

import pytest

from tests.workers.kvstore.factories import StoreFactory, make_chain, policy, put, set_policy, use
from workers.kvstore.clock import ManualClock
from workers.kvstore.policy import Pin
from workers.kvstore.preview import age_label, interval_bounds

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("seconds", "label"), [(5, "<= 1 min"), (601, "<= 1 h"), (86_400, "<= 1 d"), (1e9, "> 30 d")])
def test_ages_have_names(seconds: float, label: str) -> None:
    assert age_label(seconds) == label


def test_a_preview_tells_what_the_sweep_does(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    current = policy(1, agent_ttl_s=1e6, chat_ttl_s=1e6)
    set_policy(store, current)
    chains = [make_chain(10, start=1000 * n) for n in range(6)]
    for blocks in chains:
        put(store, blocks)
        clock.advance(400)
    use(store, chains[0], "chat")
    new = policy(2, agent_ttl_s=1500, chat_ttl_s=1e6)
    preview = store.previewer.preview(current, new)
    assert (preview.extents, preview.blocks) == (2, 20)
    assert preview.blocks_by_age == {"<= 1 h": 20}
    assert sum(preview.bytes_by_age.values()) == preview.bytes
    set_policy(store, new)
    report = store.sweep()
    assert report is not None
    assert (report.expired_blocks, report.expired_bytes) == (preview.blocks, preview.bytes)


def test_budgets_and_pins_are_foreseen(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    blocks = make_chain(10)
    put(store, blocks)
    clock.advance(100)
    pinned = policy(2, agent_ttl_s=1, total_bytes=10, pins=(Pin(name="p", tip=blocks[-1].hex()),))
    preview = store.previewer.preview(store.policy.current, pinned)
    assert preview.blocks == 0
    assert preview.over_budget_bytes["total"] > 0


def test_a_shorter_life_costs_the_hits_with_longer_intervals(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    blocks = make_chain(10)
    put(store, blocks)
    for pause in (10, 10, 5000, 10):
        clock.advance(pause)
        use(store, blocks, prompt_blocks=20)
    current = policy(1, agent_ttl_s=10_000)
    forecast = store.previewer.preview(current, policy(2, agent_ttl_s=100)).forecast["agent"]
    assert forecast.prompt_blocks == 80
    assert forecast.hit_rate == pytest.approx(40 / 80)
    assert forecast.new_hit_rate == pytest.approx(30 / 80)


def test_a_longer_life_would_have_hit_the_ghosts(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    set_policy(store, policy(1, agent_ttl_s=100))
    blocks = make_chain(10)
    put(store, blocks)
    clock.advance(5000)
    assert store.sweep() is not None
    use(store, [], prompt_blocks=10)
    put(store, blocks)
    forecast = store.previewer.preview(store.policy.current, policy(2, agent_ttl_s=10_000)).forecast["agent"]
    assert forecast.hit_rate == 0
    assert forecast.new_hit_rate == pytest.approx(1.0)


def test_nothing_known_is_not_zero(stores: StoreFactory) -> None:
    forecast = stores.open().previewer.preview(policy(1), policy(2)).forecast["agent"]
    assert forecast.hit_rate is None
    assert forecast.new_hit_rate is None


def test_histograms_forget_after_a_fortnight(stores: StoreFactory, clock: ManualClock) -> None:
    store = stores.open()
    blocks = make_chain(5)
    put(store, blocks)
    use(store, blocks, prompt_blocks=5)
    assert store.previewer.histogram("prompt", "agent") == {"blocks": 5, "hit": 5}
    (key,) = store.index.client.keys(store.index.key("h", "prompt", "agent", "*"))
    assert 14 * 86_400 < store.index.client.ttl(key) <= 16 * 86_400
    clock.advance(15 * 86_400)
    assert not store.previewer.histogram("prompt", "agent")


def test_buckets_are_quarter_octaves() -> None:
    assert interval_bounds(0) == (0.0, pytest.approx(1.189, abs=1e-3))
    assert interval_bounds(40) == (1024.0, pytest.approx(1217.7, abs=0.1))
