"""Seats and sections with a model whose answers depend on them (`windowed`)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.engine.factories import (
    Outcome,
    generate,
    make_engine,
    make_request,
    run_to_end,
    some_tokens,
    tiny_llama,
    transfer,
)
from tests.workers.engine.windowed import BLOCK, WINDOW, WindowedModel
from workers.engine.engine import Engine
from workers.engine.layout import CacheLayout
from workers.engine.seats import OutOfSeats, SeatMemory, SeatPool, SectionMismatch
from workers.identity import chain, root_hash
from workers.protocol import RequestId

NAME = RequestId("x")
REACH = 2 * (WINDOW - 1)


def windowed_engine(**values: object) -> Engine:
    return make_engine(WindowedModel(), **values)


def cold(tokens: list[int], count: int = 8) -> list[int]:
    return generate(windowed_engine(max_batch_tokens=512), make_request(tokens, max_tokens=count))


@given(
    blocks=st.integers(0, 6),
    new=st.integers(1, 20),
    budget=st.sampled_from([3, 16, 200]),
    company=st.integers(0, 3),
    data=st.randoms(),
)
@settings(max_examples=25, deadline=None)
def test_a_hit_gives_what_a_cold_run_gives(blocks: int, new: int, budget: int, company: int, data) -> None:  # type: ignore[no-untyped-def]
    engine = windowed_engine(max_batch_tokens=budget)
    known = some_tokens(blocks * BLOCK, seed=data.randrange(1000))
    if known:
        generate(engine, make_request(known, max_tokens=1))
    requests = [make_request([*known, *some_tokens(new, seed=1000 + i)]) for i in range(1 + company)]
    for request in requests:
        engine.submit(request)
    outcome = run_to_end(engine)
    assert [outcome.tokens[r.request_id] for r in requests] == [cold(r.tokens) for r in requests]
    hit = blocks * BLOCK
    event = outcome.scheduled[requests[0].request_id]
    assert event.pool_hit_tokens == hit
    assert event.recomputed_tokens == min(hit, REACH)


def test_the_next_turn_hits_the_answer_and_runs_its_end_again() -> None:
    engine = windowed_engine()
    prompt = some_tokens(10)
    answer = generate(engine, make_request(prompt, max_tokens=15))
    turn = prompt + answer + some_tokens(3, seed=9)
    before = engine.stats().computed_tokens
    engine.submit(request := make_request(turn))
    outcome = run_to_end(engine)
    assert outcome.scheduled[request.request_id].pool_hit_tokens == 24
    assert outcome.scheduled[request.request_id].recomputed_tokens == REACH
    assert engine.stats().computed_tokens - before == 28 - 24 + REACH
    assert outcome.tokens[request.request_id] == cold(turn)


def test_blocks_that_run_again_are_shared_and_stay_as_they_are() -> None:
    engine = windowed_engine()
    prompt = some_tokens(17)
    generate(engine, make_request(prompt, max_tokens=1))
    cached, blocks = engine.stats().blocks_cached, engine.arena.blocks.clone()
    generate(engine, make_request(prompt, max_tokens=1))
    assert engine.stats().blocks_cached == cached == 4
    owners = sum(engine.arena.generation(slot) for slot in range(engine.arena.blocks_total))
    assert owners == 5 + 1, "the second run takes a block for its last token only"
    published = engine._pool.lookup(chain(root_hash(engine.identity, b"tenant"), prompt, BLOCK))
    assert engine.arena.blocks[published].equal(blocks[published])


@pytest.mark.parametrize("prompt_tokens", [1, 3, 4, 5, 22])
def test_prefill_then_decode_elsewhere_equals_one_engine(prompt_tokens: int) -> None:
    prefill, decode = windowed_engine(max_batch_tokens=16), windowed_engine()
    prompt = some_tokens(prompt_tokens)
    outcome = transfer(prefill, decode, first := make_request(prompt, max_tokens=12))
    assert outcome.tokens[first.request_id] == cold(prompt, 12)
    turn = prompt + outcome.tokens[first.request_id] + [5]
    outcome = transfer(prefill, decode, second := make_request(turn, max_tokens=12))
    assert outcome.tokens[second.request_id] == cold(turn, 12)
    for engine in (prefill, decode):
        engine.check_conservation()
        assert engine.stats().blocks_used == 0


def test_suspended_requests_come_back_with_their_rings() -> None:
    requests = [make_request(some_tokens(9, seed=n), max_tokens=30, arrived=float(n)) for n in range(4)]
    expected = [cold(request.tokens, 30) for request in requests]
    engine = windowed_engine(pool_blocks=16, output_reserve_tokens=4)
    for request in requests:
        engine.submit(request)
    outcome = run_to_end(engine)
    assert [outcome.tokens[request.request_id] for request in requests] == expected
    assert engine.stats().preemptions > 0


def held(engine: Engine) -> Outcome:
    engine.submit(make_request(some_tokens(9), request_id=NAME), hold=True)
    outcome = Outcome()
    outcome.add(engine.step())
    engine.grant(NAME)
    return run_to_end(engine, outcome)


def test_a_held_request_leaves_its_seat_to_the_next() -> None:
    engine = windowed_engine(max_running=1)
    held(engine)
    assert (engine.stats().held, engine._scheduler.seats.free) == (1, 1)
    engine.submit(make_request(some_tokens(9, seed=1), request_id="y"), hold=True)
    assert engine.step().wants_credit == ["y"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sections: sections[:1], "came with sections"),
        (lambda sections: [*sections, ("more", 1, b"")], "came with sections"),
        (lambda sections: [*sections, sections[0]], "came with sections"),
        (lambda sections: [(name, version + 1, data) for name, version, data in sections], "version"),
        (lambda sections: [(name, version, data[1:]) for name, version, data in sections], "bytes"),
    ],
)
def test_sections_that_do_not_fit_are_refused_and_nothing_is_lost(change, message: str) -> None:  # type: ignore[no-untyped-def]
    sections = held(windowed_engine()).prefilled[NAME].sections
    assert [(name, version) for name, version, _ in sections] == [("ring", 5), ("last", 2)]
    decode = windowed_engine()
    decode.reserve(make_request(some_tokens(9), request_id=NAME))
    with pytest.raises(SectionMismatch, match=message):
        decode.activate(NAME, 1, change(sections))
    decode.check_conservation()
    decode.activate(NAME, 1, sections)
    decode.cancel(NAME)
    decode.check_conservation()
    assert decode._scheduler.seats.free == decode._scheduler.seats.total


def test_a_new_request_finds_zeros_in_its_seat() -> None:
    engine = windowed_engine(max_running=1)
    generate(engine, make_request(some_tokens(40)))
    engine.submit(make_request([3], request_id=NAME), hold=True)
    engine.step()
    engine.grant(NAME)
    (event,) = engine.step().prefilled
    ring = {name: data for name, _, data in event.sections}["ring"]
    assert ring.count(0) > len(ring) - 16


def test_rows_spared_by_the_tail_are_counted_by_layer() -> None:
    engine = windowed_engine(max_batch_tokens=16)
    generate(engine, make_request(some_tokens(40), max_tokens=1))
    assert engine.stats().rows_saved == (0, 40 - WINDOW)


def test_a_model_without_windows_has_seats_without_memory() -> None:
    layout = CacheLayout(tiny_llama().cache_spec())
    memory = SeatMemory(layout, 64)
    assert memory.rows.nbytes == 0
    assert memory.capture(3) == []
    memory.install(3, [], NAME)
    with pytest.raises(SectionMismatch):
        memory.install(3, [("ring", 1, b"")], NAME)


def test_seats_are_taken_and_given_back_once() -> None:
    seats = SeatPool(2)
    taken = [seats.take(), seats.take()]
    assert sorted(taken) == [0, 1]
    with pytest.raises(OutOfSeats):
        seats.take()
    seats.check(taken)
    seats.give_back(1)
    with pytest.raises(AssertionError):
        seats.give_back(1)
    with pytest.raises(AssertionError):
        seats.check(taken)
