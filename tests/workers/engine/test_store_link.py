"""Engines over a real KV store: what one computed another finds, and whatever goes wrong only costs computing."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import replace

import msgspec
import pytest

from tests.workers.engine.factories import (
    Outcome,
    generate,
    identity,
    make_request,
    run_to_end,
    some_tokens,
    tiny_llama,
    transfer,
)
from tests.workers.kvstore.factories import StoreFactory, policy, set_policy
from workers.engine.api import EngineRequest
from workers.engine.engine import Engine
from workers.identity import CacheIdentity
from workers.kvstore.extent import ExtentId, salt_id
from workers.kvstore.index import IndexUnavailable
from workers.kvstore.store import Store
from workers.models.base import CausalModel
from workers.protocol import RequestId
from workers.spec import EngineSettings

pytestmark = pytest.mark.integration

SALT = b"tenant"


def engine_over(store: Store | None, model: CausalModel | None = None, **settings: object) -> Engine:
    values: dict[str, object] = {"pool_blocks": 128, "max_batch_tokens": 64, "max_running": 16, "max_queue": 64}
    return Engine(
        model or tiny_llama(batch_invariant=True),
        EngineSettings(**(values | settings)),  # type: ignore[arg-type]
        identity(),
        store=store,
    )


def again(request: EngineRequest, **changes: object) -> EngineRequest:
    return replace(request, request_id=RequestId(request.request_id + "+"), **changes)


def hit_of(engine: Engine, request: EngineRequest) -> tuple[int, int, int]:
    """(pool hit, store hit, miss) in tokens; runs the request to its end."""
    engine.submit(request)
    event = run_to_end(engine).scheduled[request.request_id]
    return event.pool_hit_tokens, event.store_hit_tokens, event.miss_tokens


def settle(engine: Engine, store: Store) -> None:
    assert store.flush()
    run_to_end(engine)


def test_what_one_engine_computed_another_finds_and_goes_on_the_same(stores: StoreFactory) -> None:
    request = make_request(some_tokens(50))
    first, second = (engine_over(stores.open()) for _ in range(2))
    cold = generate(first, request)
    settle(first, stores._open[0])
    second.submit(request)
    outcome = run_to_end(second)
    event = outcome.scheduled[request.request_id]
    assert (event.pool_hit_tokens, event.store_hit_tokens, event.miss_tokens) == (0, 48, 2)
    assert outcome.tokens[request.request_id] == cold
    assert second.stats().computed_tokens == 2


def test_the_next_turn_hits_the_answer_and_blocks_of_the_pool_count_as_the_pools(stores: StoreFactory) -> None:
    first, second = (engine_over(stores.open()) for _ in range(2))
    request = make_request(some_tokens(30), max_tokens=15)
    answer = generate(first, request)
    settle(first, stores._open[0])
    assert hit_of(second, again(request)) == (0, 28, 2)
    turn = make_request([*request.tokens, *answer, *some_tokens(5, seed=9)])
    # 30 + 15 tokens, of which the last has no row: 11 full blocks, seven of them in this pool already
    assert hit_of(second, turn) == (28 + 16, 0, 6)
    settle(second, stores._open[1])
    third = engine_over(stores.open())
    assert hit_of(third, again(turn)) == (0, 48, 2)


def test_a_pool_that_lost_the_tail_takes_only_that_from_the_store(stores: StoreFactory) -> None:
    engine = engine_over(stores.open())
    request = make_request(some_tokens(50), max_tokens=1)
    generate(engine, request)
    settle(engine, stores._open[0])
    engine._pool._lose([engine._pool._by_hash[block] for block in list(engine._pool._by_hash)[6:]])
    assert hit_of(engine, again(request)) == (24, 24, 2)


def test_prefill_and_decode_workers_store_what_each_computed(stores: StoreFactory) -> None:
    prefill, decode = (engine_over(stores.open()) for _ in range(2))
    request = make_request(some_tokens(30), max_tokens=15)
    outcome = transfer(prefill, decode, request)
    for engine, store in zip((prefill, decode), stores._open, strict=True):
        settle(engine, store)
    turn = make_request([*request.tokens, *outcome.tokens[request.request_id], 1, 2, 3])
    assert hit_of(prefill, turn) == (28, 16, 4)


def test_the_decode_worker_may_be_first(stores: StoreFactory) -> None:
    """Its blocks hang below those that the prefill worker has yet to write: they wait for them."""
    prefill, decode = (engine_over(stores.open()) for _ in range(2))
    waits = prefill._store.store._writer  # type: ignore[union-attr]
    request = make_request(some_tokens(30), max_tokens=15)
    with waits._changed:  # the prefill worker's writer stands still meanwhile
        outcome = transfer(prefill, decode, request)
        time.sleep(0.2)
    for engine, store in zip((prefill, decode), stores._open, strict=True):
        settle(engine, store)
    turn = make_request([*request.tokens, *outcome.tokens[request.request_id], 1, 2, 3])
    assert hit_of(engine_over(stores.open()), turn) == (0, 44, 4)


def test_long_inputs_are_units_before_they_are_complete(stores: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.engine.store_writes.INTERVAL_TOKENS", 64)
    engine = engine_over(stores.open())
    request = make_request(some_tokens(300))
    engine.submit(request)
    while not engine.stats().computed_tokens >= 128:
        engine.step()
    engine.cancel(request.request_id)
    settle(engine, stores._open[0])
    assert hit_of(engine_over(stores.open()), again(request))[1] >= 128


def test_another_tenant_another_class_of_bytes_and_a_purge_miss(stores: StoreFactory) -> None:
    store = stores.open()
    engine = engine_over(store)
    store.policy.refresh_purges()
    request = make_request(some_tokens(50), max_tokens=1)
    generate(engine, request)
    settle(engine, store)
    assert hit_of(engine, again(request, salt=b"another")) == (0, 0, 50)
    assert hit_of(engine, again(request)) == (48, 0, 2)
    stores.clock.advance(1)
    store.upkeep.purge(salt_id=salt_id(SALT))
    store.policy.refresh_purges()
    engine.step()
    assert hit_of(engine, replace(again(request), request_id=RequestId("after"))) == (0, 0, 50)


OTHERS = {
    "weights_fingerprint": "w2",
    "tokenizer_fingerprint": "t2",
    "weight_format": "bf16",
    "numerics": "batch_invariant",
    "cache_dtype": "bfloat16",
    "layout_version": 2,
    "block_tokens": 8,
    "parallel_layout": "tp2",
}


def test_whatever_changes_the_bytes_misses(stores: StoreFactory) -> None:
    """Each field of the identity alone keeps blocks apart."""
    assert set(OTHERS) == set(CacheIdentity.__struct_fields__)
    model, request = tiny_llama(), make_request(some_tokens(50), max_tokens=1)
    settings = EngineSettings(pool_blocks=32)
    first = Engine(model, settings, identity(), store=stores.open())
    generate(first, request)
    settle(first, stores._open[0])
    same = Engine(model, settings, identity(), store=stores._open[0])
    assert hit_of(same, again(request)) == (0, 48, 2)
    for name, value in OTHERS.items():
        other = msgspec.structs.replace(identity(), **{name: value})
        engine = Engine(model, settings, other, store=stores._open[0])
        assert hit_of(engine, again(request)) == (0, 0, 50), f"{name} is no part of the identity"


def test_a_purge_of_a_class_or_model_reaches_the_pool(stores: StoreFactory) -> None:
    store = stores.open()
    engine = engine_over(store)
    store.policy.refresh_purges()
    request = make_request(some_tokens(50), max_tokens=1)
    for scope in ({"retention_class": "chat"}, {"fingerprint": identity().fingerprint()}):
        generate(engine, request)
        settle(engine, store)
        assert engine.stats().blocks_cached == 12
        stores.clock.advance(1)
        store.upkeep.purge(**scope)  # type: ignore[arg-type]
        store.policy.refresh_purges()
        engine.step()
        assert engine.stats().blocks_cached == 0
        stores.clock.advance(1)
    assert hit_of(engine, again(request)) == (0, 0, 50)


def test_a_life_that_is_shortened_counts_for_pool_and_store(stores: StoreFactory) -> None:
    store = stores.open()
    engine = engine_over(store)
    request = make_request(some_tokens(50), max_tokens=1)
    generate(engine, request)
    settle(engine, store)
    set_policy(store, policy(1, chat_ttl_s=0.0))
    store.policy.refresh()
    stores.clock.advance(1)
    engine.step()
    assert engine.stats().blocks_cached == 0
    assert hit_of(engine, again(request)) == (0, 0, 50)


def test_without_root_or_index_requests_go_on(stores: StoreFactory) -> None:
    store = stores.open()
    engine = engine_over(store)
    request = make_request(some_tokens(50), max_tokens=1)
    cold = generate(engine, request)
    settle(engine, store)
    shutil.rmtree(stores.root)
    other = engine_over(stores.open())
    other.submit(request)
    assert run_to_end(other).tokens[request.request_id] == cold
    stores._open[1].flush()
    assert not stores._open[1].status().ok


def test_reads_that_hang_hold_nobody_up(stores: StoreFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the store had is computed after the deadline; who wants nothing of it does not wait that long."""
    engine = engine_over(stores.open())
    known, other = make_request(some_tokens(50), max_tokens=1), make_request(some_tokens(50, seed=1), max_tokens=1)
    cold = generate(engine, known)
    settle(engine, stores._open[0])
    slow = stores.open(read_deadline_s=3.0)
    release = threading.Event()
    opened = slow.root.open
    monkeypatch.setattr(slow.root, "open", lambda extent: opened(extent) if release.wait(60) else -1)
    late = engine_over(slow)
    late.submit(known)
    late.submit(other)
    outcome = run_to_end(late, steps=2_000_000)
    release.set()
    assert list(outcome.scheduled) == [other.request_id, known.request_id]
    assert outcome.scheduled[known.request_id].store_hit_tokens == 0
    assert outcome.tokens[known.request_id] == cold
    assert [ailment.trouble for ailment in slow.status().ailments] == ["slow"]


def test_a_request_that_ends_while_its_prefix_is_read_leaves_nothing(stores: StoreFactory) -> None:
    store = stores.open()
    engine = engine_over(store)
    request = make_request(some_tokens(50), max_tokens=1)
    generate(engine, request)
    settle(engine, store)
    other = engine_over(stores.open())
    other.submit(again(request))
    other.step()
    assert other.has_work()
    other.cancel(RequestId(request.request_id + "+"))
    run_to_end(other)
    assert other._store is not None
    assert other._store.reads.bytes_held == 0


def test_pinned_blocks_are_bounded_and_the_rest_is_copied(stores: StoreFactory) -> None:
    store = stores.open()
    engine = engine_over(store, pool_blocks=32)
    assert engine._store is not None
    with store._writer._changed:
        generate(engine, make_request(some_tokens(28), max_tokens=1))
        generate(engine, make_request(some_tokens(28, seed=1), max_tokens=1))
        assert engine._store.writes.pinned_blocks == 7
    settle(engine, store)
    assert engine._store.writes.pinned_blocks == 0
    assert hit_of(engine_over(stores.open()), make_request(some_tokens(28, seed=1)))[1] == 24


def asked(engine: Engine, requests: list[EngineRequest]) -> None:
    """Submit requests that another worker decodes, and step until each of them was asked for credit."""
    for request in requests:
        engine.submit(request, hold=True)
    wanted = {request.request_id for request in requests}
    for _ in range(2_000_000):
        wanted -= set(engine.step().wants_credit)
        if not wanted:
            return
    raise AssertionError(f"{wanted} were not asked")


def test_requests_that_wait_for_credit_keep_no_place_for_reads(
    stores: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.engine.store_reads.MAX_READS", 2)
    engine = engine_over(stores.open())
    asked(engine, [make_request(some_tokens(20, seed=seed)) for seed in range(2)])
    other = make_request(some_tokens(20, seed=5), max_tokens=1)
    assert hit_of(engine, other) == (0, 0, 20)


def test_a_deferred_request_gives_what_was_read_back_and_reads_again(stores: StoreFactory) -> None:
    first, second = (engine_over(stores.open()) for _ in range(2))
    request = make_request(some_tokens(50), max_tokens=1)
    generate(first, request)
    settle(first, stores._open[0])
    asked(second, [request])
    assert second._store is not None
    assert second._store.reads.bytes_held > 0
    second.defer(request.request_id, 0.0)
    assert second._store.reads.bytes_held == 0
    run_to_end(second)
    second.grant(request.request_id)
    assert run_to_end(second).scheduled[request.request_id].store_hit_tokens == 48


def test_bytes_that_wait_for_credit_keep_others_at_most_for_the_deadline(stores: StoreFactory) -> None:
    first = engine_over(stores.open())
    requests = [make_request(some_tokens(50, seed=seed), max_tokens=1) for seed in range(2)]
    for request in requests:
        generate(first, request)
    settle(first, stores._open[0])
    second = engine_over(stores.open(buffer_bytes=1))
    asked(second, requests[:1])
    second._store.store.settings = msgspec.structs.replace(  # type: ignore[union-attr]
        second._store.store.settings,
        read_deadline_s=0.05,  # type: ignore[union-attr]
    )
    second.submit(requests[1])
    outcome = run_to_end(second, steps=2_000_000)
    assert outcome.scheduled[requests[1].request_id].store_hit_tokens == 0
    assert requests[1].request_id in outcome.finishes


def test_what_a_purge_found_running_or_suspended_comes_back_nowhere(stores: StoreFactory) -> None:
    store = stores.open()
    engine = engine_over(store, pool_blocks=16, output_reserve_tokens=4)
    store.policy.refresh_purges()
    requests = [
        make_request(some_tokens(20, seed=seed), max_tokens=40, arrived=float(seed), request_id=f"p{seed}")
        for seed in range(2)
    ]
    outcome = Outcome()
    for request in requests:
        engine.submit(request)
    while not engine.stats().preemptions:
        outcome.add(engine.step())
    stores.clock.advance(1)
    store.upkeep.purge(salt_id=salt_id(SALT))
    stores.clock.advance(1)
    store.policy.refresh_purges()
    run_to_end(engine, outcome)
    settle(engine, store)
    assert engine.stats().blocks_cached == 0
    for request in requests:
        turn = make_request([*request.tokens, *outcome.tokens[request.request_id]], max_tokens=1)
        assert hit_of(engine, turn) == (0, 0, 60)


def test_what_is_handed_over_after_a_purge_that_was_not_heard_of_yet_is_void(stores: StoreFactory) -> None:
    store = stores.open()
    engine = engine_over(store, max_batch_tokens=16)
    request = make_request(some_tokens(50), max_tokens=1)
    engine.submit(request)
    while not engine.stats().computed_tokens:
        engine.step()
    stores.clock.advance(1)
    store.upkeep.purge(salt_id=salt_id(SALT))
    stores.clock.advance(1)
    run_to_end(engine)
    settle(engine, store)
    assert hit_of(engine_over(stores.open()), again(request)) == (0, 0, 50)


def test_the_store_forgets_what_came_before_logits_that_are_not_finite(
    stores: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that were handed over before the fault showed."""
    monkeypatch.setattr("workers.engine.store_writes.INTERVAL_TOKENS", 16)
    store, model = stores.open(), tiny_llama()
    engine = engine_over(store, model, max_batch_tokens=16)
    request, other = make_request(some_tokens(50), max_tokens=4), make_request(some_tokens(30, seed=1), max_tokens=1)
    generate(engine, other)
    engine.submit(request)
    chain = engine._scheduler.waiting[0].chain
    while engine.stats().computed_tokens < 30 + 32:
        engine.step()
    assert store.flush()
    assert store.find(chain).blocks >= 4
    model.weights.norm.fill_(float("nan"))
    assert request.request_id in run_to_end(engine).failed
    model.weights.norm.fill_(1.0)
    settle(engine, store)
    assert hit_of(engine, again(request)) == (0, 0, 50)
    assert hit_of(engine_over(stores.open()), again(other)) == (0, 28, 2)


def test_writes_of_a_faulty_chain_that_wait_are_dropped(stores: StoreFactory) -> None:
    store, model = stores.open(), tiny_llama()
    engine = engine_over(store, model)
    request = make_request(some_tokens(50), max_tokens=1)
    hold = threading.Event()
    check = store.root.check
    store.root.check = lambda name: check(name) if hold.wait(10) else None  # type: ignore[method-assign]
    generate(engine, make_request(some_tokens(20, seed=9), max_tokens=1))  # the writer is busy with this one
    generate(engine, request)
    model.weights.norm.fill_(float("nan"))
    engine.submit(bad := again(request))
    assert bad.request_id in run_to_end(engine).failed
    hold.set()
    settle(engine, store)
    assert store.status().counters["writes_dropped_faulty"] == 1
    model.weights.norm.fill_(1.0)
    assert hit_of(engine_over(stores.open()), make_request(request.tokens)) == (0, 0, 50)


def test_nothing_of_a_faulty_chain_is_read_before_the_store_has_forgotten_it(
    stores: StoreFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.engine.store_distrust.AGAIN_S", 0.01)
    store, model = stores.open(), tiny_llama()
    engine = engine_over(store, model)
    request = make_request(some_tokens(50), max_tokens=1)
    generate(engine, request)
    settle(engine, store)
    away = True
    forget = store.index.forget

    def forgets(extents: list[ExtentId], *, reason: str) -> list[ExtentId]:
        if away:
            raise IndexUnavailable("away")
        return forget(extents, reason=reason)

    monkeypatch.setattr(store.index, "forget", forgets)
    engine.submit(bad := again(request))
    chain = engine._scheduler.waiting[0].chain
    model.weights.norm.fill_(float("nan"))
    assert bad.request_id in run_to_end(engine).failed
    model.weights.norm.fill_(1.0)
    assert store.find(chain).blocks == 12
    assert hit_of(engine, replace(request, request_id=RequestId("anew"))) == (0, 0, 50)
    away = False
    until = time.monotonic() + 10
    while store.find(chain).blocks:
        assert time.monotonic() < until
        engine.step()
        time.sleep(0.01)
