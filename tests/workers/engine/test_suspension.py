from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.engine.factories import Outcome, generate, make_engine, make_request, run_to_end, some_tokens
from workers.engine.engine import Engine
from workers.protocol import Finish


def tight_engine(**settings: object) -> Engine:
    """16 blocks of 4 tokens, room for one block of output set aside: long answers outgrow it together."""
    values: dict[str, object] = {"pool_blocks": 16, "output_reserve_tokens": 4}
    return make_engine(**(values | settings))  # type: ignore[arg-type]


def test_suspended_requests_come_back_with_the_same_answer() -> None:
    requests = [
        make_request(some_tokens(9, seed=n), max_tokens=30, temperature=0.8, seed=n, arrived=float(n)) for n in range(4)
    ]
    expected = [
        generate(make_engine(), make_request(r.tokens, max_tokens=30, temperature=0.8, seed=n))
        for n, r in enumerate(requests)
    ]
    engine = tight_engine()
    for request in requests:
        engine.submit(request)
    outcome = run_to_end(engine)
    assert [outcome.tokens[request.request_id] for request in requests] == expected
    assert engine.stats().preemptions > 0
    assert engine.stats().blocks_used == 0
    assert set(outcome.finishes.values()) == {Finish.LENGTH}


def suspended_engine() -> Engine:
    """Two requests, of which the younger, `y`, is suspended."""
    engine = tight_engine()
    engine.submit(make_request(some_tokens(20), request_id="o", max_tokens=40, arrived=0.0))
    engine.submit(make_request(some_tokens(20, seed=1), request_id="y", max_tokens=40, arrived=1.0))
    while not engine.stats().preemptions:
        engine.step()
        engine.check_conservation()
    return engine


def test_the_youngest_steps_aside_and_the_oldest_goes_on() -> None:
    engine = suspended_engine()
    assert [delta.request_id for delta in engine.step().deltas] == ["o"]
    assert engine.stats().running == 2


def test_nothing_is_reserved_while_one_is_suspended() -> None:
    engine = suspended_engine()
    assert engine.reserve(make_request([1, 2])) is None


def test_a_suspended_request_can_be_cancelled() -> None:
    engine = suspended_engine()
    engine.cancel("y")  # type: ignore[arg-type]
    engine.check_conservation()
    assert engine.stats().running == 1
    while engine.has_work():
        engine.step()
    assert engine.stats().blocks_used == 0


def test_deadlines_hold_for_suspended_requests() -> None:
    now = [0.0]
    engine = tight_engine(clock=lambda: now[0])
    for name, arrived in (("o", 0.0), ("y", 1.0)):
        engine.submit(make_request(some_tokens(20), request_id=name, max_tokens=40, arrived=arrived, deadline=50.0))
    while not engine.stats().preemptions:
        engine.step()
    now[0] = 50.0
    assert {event.request_id for event in engine.step().failed} == {"o", "y"}
    engine.check_conservation()


def test_without_a_spool_the_youngest_ends_for_lack_of_resources() -> None:
    engine = tight_engine(spool_mib=0)
    engine.submit(make_request(some_tokens(20), request_id="o", max_tokens=40, arrived=0.0))
    engine.submit(make_request(some_tokens(20, seed=1), request_id="y", max_tokens=40, arrived=1.0))
    outcome = run_to_end(engine)
    assert outcome.finishes == {"o": Finish.LENGTH, "y": Finish.INSUFFICIENT_SYSTEM_RESOURCE}
    assert len(outcome.tokens["o"]) == 40
    assert engine.stats().preemptions == 0


@settings(max_examples=25, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 40), st.booleans(), st.integers(0, 40)), min_size=1, max_size=8
    ),
    reserve=st.sampled_from([1, 4, 16]),
)
def test_whatever_comes_ends_and_blocks_are_conserved(shapes: list[tuple[int, int, bool, int]], reserve: int) -> None:
    """Requests that arrive at different steps, some cancelled on their way."""
    engine = tight_engine(output_reserve_tokens=reserve)
    outcome = Outcome()
    cancelled = set()
    for number, (prompt, output, cancel, step) in enumerate(shapes):
        name = str(number)
        request = make_request(some_tokens(prompt, seed=number % 3), request_id=name, max_tokens=output)
        engine.submit(request)
        for _ in range(step % 7):
            outcome.add(engine.step())
            engine.check_conservation()
        if cancel:
            engine.cancel(request.request_id)
            engine.check_conservation()
            cancelled.add(name)
    run_to_end(engine, outcome)
    assert engine.stats().blocks_used == 0
    for number, (prompt, output, _, _) in enumerate(shapes):
        if str(number) not in cancelled:
            assert len(outcome.tokens[str(number)]) == min(output, 64 - prompt)
