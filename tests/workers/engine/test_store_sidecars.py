"""V4.1 through the KV store: a hit with kept window rows costs at most W tokens, one without them is recomputed, and
both give what a cold run gives."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch

from tests.workers.engine.factories import identity, make_request
from tests.workers.kvstore.factories import StoreFactory, policy, set_policy
from tests.workers.models.deepseek_v41.factories import TINY, random_ids, write_tiny
from workers.engine.api import EngineRequest, ScheduledEvent
from workers.engine.engine import Engine
from workers.kvstore.extent import short_names, sidecar_hash
from workers.kvstore.policy import RetentionClass, SidecarRule
from workers.kvstore.store import Store
from workers.models.base import CausalModel
from workers.models.deepseek_v41.serving import load_served
from workers.spec import EngineSettings

pytestmark = pytest.mark.integration

W = TINY.sliding_window
CLOSE = 2e-5
_cold = itertools.count()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CausalModel:
    return load_served(write_tiny(tmp_path_factory.mktemp("v41")))


def engine_over(store: Store, model: CausalModel, **settings: object) -> Engine:
    values: dict[str, object] = {"pool_blocks": 256, "max_batch_tokens": 96, "max_running": 8, "max_queue": 64}
    return Engine(model, EngineSettings(**(values | settings)), identity(), store=store)  # type: ignore[arg-type]


def ids(length: int, seed: int) -> list[int]:
    return random_ids(length, seed).tolist()


def asking(tokens: list[int], **changes: object) -> EngineRequest:
    values: dict[str, object] = {"max_tokens": 3, "logprobs": TINY.vocab_size}
    return make_request(tokens, **(values | changes))


Answer = tuple[list[int], torch.Tensor]


def answer(engine: Engine, request: EngineRequest) -> tuple[ScheduledEvent, Answer]:
    """Tokens, and the distribution over the vocabulary at each of them."""
    engine.submit(request)
    tokens: list[int] = []
    rows: list[torch.Tensor] = []
    event: ScheduledEvent | None = None
    while engine.has_work():
        output = engine.step()
        engine.check_conservation()
        assert not output.failed
        event = next(iter(output.scheduled), event)
        for delta in output.deltas:
            tokens += delta.tokens
            for logprobs in delta.logprobs or ():
                row = torch.empty(TINY.vocab_size, dtype=torch.float64)
                row[[i for i, _ in logprobs.top]] = torch.tensor([v for _, v in logprobs.top], dtype=torch.float64)
                rows.append(row)
    assert event is not None
    return event, (tokens, torch.stack(rows))


def cold(engine: Engine, tokens: list[int]) -> Answer:
    return answer(engine, asking(tokens, salt=b"cold %d" % next(_cold)))[1]


def assert_same(got: Answer, wanted: Answer) -> None:
    assert got[0] == wanted[0]
    torch.testing.assert_close(got[1], wanted[1], atol=CLOSE, rtol=0)


def settle(engine: Engine, store: Store) -> None:
    assert store.flush()
    while engine.has_work():
        engine.step()


@pytest.mark.parametrize("new", [1, W - 1, W, 3 * W + 2])
@pytest.mark.parametrize("known", [3 * W, 29 * W + 7])
def test_a_hit_at_a_units_end_runs_at_most_a_window_again(
    stores: StoreFactory, model: CausalModel, known: int, new: int
) -> None:
    first, second = (engine_over(stores.open(), model) for _ in range(2))
    prompt = ids(known, 1)
    answer(first, asking(prompt, max_tokens=1))
    settle(first, stores._open[0])
    turn = [*prompt[: known // W * W], *ids(new, 7)]
    event, got = answer(second, asking(turn))
    assert event.store_hit_tokens == known // W * W
    assert event.recomputed_tokens == max(0, W - new)
    assert_same(got, cold(second, turn))
    other = [*prompt[: known // W * W], *ids(new, 8)]  # from the pool, and rows kept in memory
    again, pooled = answer(first, asking(other))
    assert (again.pool_hit_tokens, again.recomputed_tokens) == (known // W * W, max(0, W - new))
    assert_same(pooled, cold(first, other))


def test_turn_after_turn_with_answers_between_workers(stores: StoreFactory, model: CausalModel, seeded: int) -> None:
    """Chains of kept rows that came from kept rows stay exact."""
    numbers = random.Random(seeded)
    engines = [engine_over(stores.open(), model) for _ in range(2)]
    text = ids(11 * W + 1, 2)
    for turn in range(6):
        event, got = answer(engines[turn % 2], asking(text, max_tokens=numbers.choice([2, 9, 21])))
        if turn:
            assert event.recomputed_tokens <= W + 21, "at most a window, and an answer that is too short for its own"
        assert_same((got[0][:2], got[1][:2]), _first(cold(engines[turn % 2], text), 2))
        settle(engines[turn % 2], stores._open[turn % 2])
        text = [*text, *got[0], *ids(numbers.choice([1, 5, 30]), 100 + turn)]


def _first(whole: Answer, count: int) -> Answer:
    return whole[0][:count], whole[1][:count]


def test_without_kept_rows_the_hit_is_recomputed_exactly(stores: StoreFactory, model: CausalModel) -> None:
    none = SidecarRule(keep="none")
    classes = (RetentionClass(name="agent", ttl_s=3600.0), RetentionClass(name="chat", ttl_s=3600.0, sidecars=none))
    first = engine_over(stores.open(), model)
    set_policy(stores._open[0], policy(1, classes=classes))
    second = engine_over(stores.open(), model)
    for store in stores._open:
        store.policy.refresh()
    prompt = ids(29 * W, 3)
    answer(first, asking(prompt, max_tokens=1))
    settle(first, stores._open[0])
    turn = [*prompt, *ids(5, 4)]
    event, got = answer(second, asking(turn))
    assert event.store_hit_tokens == 29 * W
    assert event.recomputed_tokens == 29 * W - model.resume_from(29 * W, len(turn)) > 2 * W
    assert_same(got, cold(second, turn))


def test_a_hit_inside_a_unit_starts_from_the_last_kept_rows_before_it(stores: StoreFactory, model: CausalModel) -> None:
    """A prompt that parts from the known text two blocks after a unit's end runs those again, not the recompute's."""
    engine = engine_over(stores.open(), model)
    known = ids(30 * W, 5)
    answer(engine, asking(known[: 20 * W], max_tokens=1))
    answer(engine, asking(known, max_tokens=1))
    turn = [*known[: 22 * W], *ids(40, 6)]
    event, got = answer(engine, asking(turn))
    assert (event.pool_hit_tokens, event.recomputed_tokens) == (22 * W, 2 * W)
    assert_same(got, cold(engine, turn))


def test_what_was_recomputed_is_not_kept_before_it_is_exact(stores: StoreFactory, model: CausalModel) -> None:
    engine = engine_over(stores.open(), model)
    known = ids(30 * W, 8)
    answer(engine, asking(known, max_tokens=1))
    for number in range(4):  # parts in the middle: recompute; a few new tokens, then on from there
        text = [*known[: (10 + 3 * number) * W], *ids(3 + 2 * number, 9 + number)]
        for _ in range(3):
            _, got = answer(engine, asking(text, max_tokens=2))
            assert_same(got, _first(cold(engine, text), 2))
            text = [*text, *got[0], *ids(6, 20 + number)]


def test_a_common_prefix_becomes_a_unit(stores: StoreFactory, model: CausalModel) -> None:
    """The first request that parts from a text inside it pays two blocks more than a recompute, the next a window."""
    first, second = (engine_over(stores.open(), model, max_batch_tokens=512) for _ in range(2))
    known = ids(45 * W, 30)
    answer(first, asking(known, max_tokens=1))
    recomputed = []
    for number, engine in enumerate((first, first, second)):
        turn = [*known[: 25 * W], *ids(40, 31 + number)]
        event, got = answer(engine, asking(turn))
        assert event.pool_hit_tokens + event.store_hit_tokens == 25 * W
        recomputed.append(event.recomputed_tokens)
        assert_same(got, cold(engine, turn))
        settle(engine, stores._open[engine is second])
    must = 25 * W - model.resume_from(25 * W, 25 * W + 40)
    assert recomputed == [must + 2 * W, 0, 0]


@pytest.mark.parametrize("broken", ["raises", "short"])
def test_a_search_that_fails_or_brings_other_bytes_costs_a_recompute(
    stores: StoreFactory, model: CausalModel, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    first, second = (engine_over(stores.open(), model) for _ in range(2))
    prompt = ids(29 * W, 40)
    answer(first, asking(prompt, max_tokens=1))
    settle(first, stores._open[0])
    real = stores._open[1].sidecars.get

    def get(*args: Any, **options: Any) -> dict[int, bytes]:
        found = real(*args, **options)
        assert found
        if broken == "raises":
            raise PermissionError("the policy's copy")
        return {block: data[:-1] for block, data in found.items()}

    monkeypatch.setattr(stores._open[1].sidecars, "get", get)
    turn = [*prompt, *ids(5, 41)]
    event, got = answer(second, asking(turn))
    assert event.store_hit_tokens == 29 * W
    assert event.recomputed_tokens > 2 * W
    assert_same(got, cold(second, turn))
    counted = stores._open[1].status().counters
    assert counted["sidecars_failed" if broken == "raises" else "sidecars_misfit"] >= 1


def rule(store: Store, version: int, keep: Literal["unit_end", "all"], ttl_s: float | None = None) -> None:
    item = RetentionClass(name="chat", ttl_s=3600.0, sidecars=SidecarRule(keep=keep, ttl_s=ttl_s))
    set_policy(store, policy(version, classes=(RetentionClass(name="agent", ttl_s=3600.0), item)))
    store.policy.refresh()


@pytest.mark.parametrize("lost", [False, True])
def test_hits_in_memory_keep_the_stores_rows_alive_and_write_lost_ones_again(
    stores: StoreFactory, model: CausalModel, lost: bool
) -> None:
    store = stores.open()
    first = engine_over(store, model)
    rule(store, 1, "unit_end", ttl_s=100.0)
    prompt = ids(29 * W, 50)
    answer(first, asking(prompt, max_tokens=1))
    settle(first, store)
    if lost:
        kind = first._store._sidecars._ring.kind  # type: ignore[union-attr]
        chain = first._store._pool._by_hash  # type: ignore[union-attr]
        names = short_names([sidecar_hash(block, kind) for block in chain])
        store.index.forget([run.extent for run in store.index.locate(names).runs if run.count], reason="test")
    stores.clock.advance(60)
    event, _ = answer(first, asking([*prompt, *ids(1, 51)], max_tokens=1))
    assert (event.pool_hit_tokens, event.recomputed_tokens) == (29 * W, W - 1)
    _wait_for(lambda: not store.sidecars._threads.waiting and not store.sidecars._threads.busy)
    settle(first, store)
    stores.clock.advance(60)
    event, _ = answer(engine_over(stores.open(), model), asking([*prompt, *ids(1, 52)], max_tokens=1))
    assert (event.store_hit_tokens, event.recomputed_tokens) == (29 * W, W - 1)


def _wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_write_of_rows_that_was_dropped_is_tried_again(
    stores: StoreFactory, model: CausalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stores.open()
    engine = engine_over(store, model)
    prompt = ids(20 * W, 53)
    with monkeypatch.context() as full:
        full.setattr(store._writer, "_most_items", 0)
        answer(engine, asking(prompt, max_tokens=1))
    assert store._writer.waiting == 0
    answer(engine, asking(prompt, max_tokens=1))
    settle(engine, store)
    other = [*prompt, *ids(1, 54)]
    event, _ = answer(engine_over(stores.open(), model), asking(other, max_tokens=1))
    assert event.recomputed_tokens == W - 1


@pytest.mark.parametrize("keep", ["unit_end", "all"])
def test_a_class_that_keeps_all_resumes_inside_an_answer(
    stores: StoreFactory, model: CausalModel, keep: Literal["unit_end", "all"]
) -> None:
    store = stores.open()
    engine = engine_over(store, model)
    rule(store, 1, keep)
    prompt = ids(20 * W, 55)
    _, (tokens, _) = answer(engine, asking(prompt, max_tokens=6 * W))
    turn = [*prompt, *tokens[: 2 * W], *ids(2 * W, 56)]
    event, got = answer(engine, asking(turn))
    assert event.pool_hit_tokens == 22 * W
    assert event.recomputed_tokens == (0 if keep == "all" else 2 * W)
    assert_same(got, cold(engine, turn))


def test_places_that_cannot_be_begun_from_are_not_looked_at(
    stores: StoreFactory, model: CausalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_over(stores.open(), model)
    assert engine._store is not None
    sidecars = engine._store._sidecars
    assert sidecars is not None
    engine.submit(asking(ids(40 * W, 57)))
    (sequence,) = engine._scheduler.waiting
    looked: list[int] = []
    needed = sidecars._needed
    monkeypatch.setattr(sidecars, "_needed", lambda start: looked.append(start) or needed(start))
    assert sidecars._start(sequence, 39 * W, set(), 30 * W) is None
    assert not looked
    assert sidecars._start(sequence, 39 * W, {3, 4}, 30 * W) is None
    assert len(looked) <= 9
    assert sidecars._start(sequence, 39 * W, {3, 4, 33, 34}, 30 * W) == 35 * W
