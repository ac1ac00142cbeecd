from __future__ import annotations

import pytest

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
from workers.engine import sequence as sequence_module
from workers.engine.api import EngineBusy, RequestRefused
from workers.engine.engine import Engine
from workers.protocol import ErrorCode, Finish


def alone(tokens: list[int], **sampling: object) -> list[int]:
    return generate(make_engine(), make_request(tokens, **sampling))


def test_company_chunking_and_pool_hits_leave_greedy_output_as_it_is() -> None:
    prompts = [some_tokens(n, seed=n) for n in (1, 3, 4, 5, 17, 40, 64, 90)]
    expected = [alone(prompt) for prompt in prompts]
    engine = make_engine(max_batch_tokens=24)
    for round_number in range(2):
        requests = [make_request(prompt, request_id=f"{round_number}.{i}") for i, prompt in enumerate(prompts)]
        for request in requests:
            engine.submit(request)
        outcome = run_to_end(engine)
        assert [outcome.tokens[request.request_id] for request in requests] == expected
    assert outcome.scheduled["1.7"].pool_hit_tokens == 88
    assert outcome.scheduled["1.7"].miss_tokens == 2


def test_the_last_token_always_runs() -> None:
    engine = make_engine()
    prompt = some_tokens(16)
    first = generate(engine, make_request(prompt))
    engine.submit(again := make_request(prompt))
    outcome = run_to_end(engine)
    assert outcome.scheduled[again.request_id].pool_hit_tokens == 12
    assert outcome.tokens[again.request_id] == first


def test_a_prompt_below_one_block_hits_nothing() -> None:
    engine = make_engine()
    generate(engine, make_request([1, 2, 3], max_tokens=1))
    engine.submit(again := make_request([1, 2, 3]))
    assert run_to_end(engine).scheduled[again.request_id].pool_hit_tokens == 0


def test_the_next_turn_hits_the_answer() -> None:
    engine = make_engine()
    prompt = some_tokens(10)
    answer = generate(engine, make_request(prompt, max_tokens=11))
    turn = prompt + answer + some_tokens(3, seed=9)
    engine.submit(request := make_request(turn))
    outcome = run_to_end(engine)
    # 10 + 11 tokens, the last one's row was never computed: 20 rows are 5 blocks.
    assert outcome.scheduled[request.request_id].pool_hit_tokens == 20
    assert outcome.tokens[request.request_id] == alone(turn)


def test_another_salt_hits_nothing() -> None:
    engine = make_engine()
    prompt = some_tokens(20)
    generate(engine, make_request(prompt, salt=b"one"))
    engine.submit(same := make_request(prompt, salt=b"one"))
    engine.submit(other := make_request(prompt, salt=b"two"))
    outcome = run_to_end(engine)
    assert outcome.scheduled[same.request_id].pool_hit_tokens == 16
    assert outcome.scheduled[other.request_id].pool_hit_tokens == 0


@pytest.mark.parametrize("prompt_tokens", [1, 3, 4, 7, 8, 33])
def test_prefill_then_decode_elsewhere_equals_one_engine(prompt_tokens: int) -> None:
    prefill, decode = make_engine(max_batch_tokens=16), make_engine()
    request = make_request(some_tokens(prompt_tokens), max_tokens=12, temperature=0.9, seed=5)
    outcome = transfer(prefill, decode, request)
    assert outcome.tokens[request.request_id] == alone(request.tokens, max_tokens=12, temperature=0.9, seed=5)
    for engine in (prefill, decode):
        engine.check_conservation()
        assert engine.stats().blocks_used == 0


def test_a_second_turn_sends_only_what_decode_lacks() -> None:
    prefill, decode = make_engine(), make_engine()
    first = make_request(some_tokens(12), max_tokens=9)
    answer = transfer(prefill, decode, first).tokens[first.request_id]
    turn = first.tokens + answer + some_tokens(5, seed=3)
    reservation = decode.reserve(second := make_request(turn))
    assert reservation is not None
    assert reservation.have_blocks == 5  # 12 prompt tokens and 8 of the 9 answer tokens have rows
    decode.cancel(second.request_id)
    outcome = transfer(prefill, decode, third := make_request(turn))
    assert outcome.tokens[third.request_id] == alone(turn)


def test_reserving_twice_is_one_reservation() -> None:
    engine = make_engine()
    request = make_request(some_tokens(9))
    assert engine.reserve(request) == engine.reserve(request)
    engine.cancel(request.request_id)
    engine.check_conservation()
    assert engine.stats().blocks_used == 0


def test_prefill_holds_nothing_for_output_and_nothing_while_it_waits_for_credit() -> None:
    engine = make_engine(pool_blocks=5)
    request = make_request(some_tokens(15), max_tokens=100)
    engine.submit(request, hold=True)
    outcome = Outcome()
    outcome.add(engine.step())
    assert outcome.asked == [request.request_id]
    assert engine.stats().blocks_used == 0
    outcome.add(engine.step())
    assert outcome.asked == [request.request_id], "asked once"
    engine.grant(request.request_id)
    run_to_end(engine, outcome)
    assert outcome.prefilled[request.request_id].finish is None
    assert engine.stats().held == 1
    assert engine.stats().blocks_used == 4
    engine.release(request.request_id)
    engine.release(request.request_id)
    assert engine.stats().blocks_used == 0
    engine.check_conservation()


def test_a_first_token_that_ends_the_request_says_so() -> None:
    engine = make_engine()
    request = make_request(some_tokens(6), max_tokens=1)
    engine.submit(request, hold=True)
    outcome = Outcome()
    outcome.add(engine.step())
    engine.grant(request.request_id)
    run_to_end(engine, outcome)
    assert outcome.prefilled[request.request_id].finish is Finish.LENGTH
    assert outcome.finishes[request.request_id] is Finish.LENGTH


def cancel_while_waiting(engine: Engine) -> None:
    engine.submit(make_request(some_tokens(20), request_id="x"))


def cancel_while_asked(engine: Engine) -> None:
    engine.submit(make_request(some_tokens(20), request_id="x"), hold=True)
    assert engine.step().wants_credit == ["x"]


def cancel_while_granted(engine: Engine) -> None:
    cancel_while_asked(engine)
    engine.grant("x")  # type: ignore[arg-type]


def cancel_while_prefilling(engine: Engine) -> None:
    engine.submit(make_request(some_tokens(200), request_id="x"))
    engine.step()
    assert engine.stats().blocks_used


def cancel_while_decoding(engine: Engine) -> None:
    engine.submit(make_request(some_tokens(20), request_id="x"))
    engine.step()
    assert engine.step().deltas


def cancel_while_held(engine: Engine) -> None:
    cancel_while_granted(engine)
    assert engine.step().prefilled


def cancel_while_reserved(engine: Engine) -> None:
    assert engine.reserve(make_request(some_tokens(20), request_id="x"))


def cancel_after_activation(engine: Engine) -> None:
    cancel_while_reserved(engine)
    engine.activate("x", 3, [])  # type: ignore[arg-type]
    assert engine.step().deltas


@pytest.mark.parametrize(
    "bring_there",
    [
        cancel_while_waiting,
        cancel_while_asked,
        cancel_while_granted,
        cancel_while_prefilling,
        cancel_while_decoding,
        cancel_while_held,
        cancel_while_reserved,
        cancel_after_activation,
    ],
)
def test_cancel_gives_everything_back(bring_there) -> None:  # type: ignore[no-untyped-def]
    engine = make_engine()
    bring_there(engine)
    for _ in range(2):
        engine.cancel("x")  # type: ignore[arg-type]
        engine.check_conservation()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.held, stats.blocks_used) == (0, 0, 0, 0)
    outcome = run_to_end(engine)
    assert outcome.tokens == {}
    # Another prompt: the activated one's blocks were never filled here.
    assert generate(engine, make_request(some_tokens(20, seed=1))) == alone(some_tokens(20, seed=1))


def test_calls_for_unknown_requests_are_ignored() -> None:
    engine = make_engine()
    for call in (engine.grant, engine.release, engine.cancel):
        call("nobody")  # type: ignore[arg-type]
    engine.activate("nobody", 1, [])  # type: ignore[arg-type]
    assert not engine.has_work()


def test_deadlines_end_waiting_running_and_held_requests() -> None:
    now = [0.0]
    engine = make_engine(clock=lambda: now[0], pool_blocks=12)
    engine.submit(make_request(some_tokens(30), request_id="running", max_tokens=18, deadline=5.0))
    engine.submit(make_request(some_tokens(30, seed=1), request_id="waiting", max_tokens=18, deadline=5.0))
    engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (1, 1)
    now[0] = 5.0
    assert engine.has_work()
    failed = engine.step().failed
    assert {event.request_id for event in failed} == {"running", "waiting"}
    assert {event.code for event in failed} == {ErrorCode.DEADLINE}
    cancel_while_granted(engine)
    engine.cancel("x")  # type: ignore[arg-type]
    engine.submit(make_request(some_tokens(5), request_id="held", deadline=9.0), hold=True)
    engine.step()
    engine.grant("held")  # type: ignore[arg-type]
    assert engine.step().prefilled
    assert not engine.has_work()
    now[0] = 9.0
    assert engine.has_work()
    assert [event.request_id for event in engine.step().failed] == ["held"]
    engine.check_conservation()
    assert engine.stats().blocks_used == 0


def test_the_transfer_keeps_the_deadline_of_a_reservation() -> None:
    now = [0.0]
    engine = make_engine(clock=lambda: now[0])
    engine.reserve(make_request(some_tokens(5), request_id="x", deadline=1.0))
    now[0] = 2.0
    assert not engine.step().failed
    engine.activate("x", 3, [])  # type: ignore[arg-type]
    assert not engine.step().deltas  # past its deadline as soon as nobody writes into its blocks any more
    engine.check_conservation()


def test_the_queue_has_a_bound() -> None:
    engine = make_engine(max_queue=2)
    for number in range(2):
        engine.submit(make_request([number]))
    with pytest.raises(EngineBusy):
        engine.submit(make_request([5]))


def test_a_request_is_submitted_once() -> None:
    engine = make_engine()
    engine.submit(request := make_request([1, 2]))
    engine.submit(request)
    assert engine.stats().waiting == 1


@pytest.mark.parametrize(
    ("tokens", "sampling", "code"),
    [
        ([], {}, ErrorCode.INVALID),
        ([97], {}, ErrorCode.INVALID),
        ([-1], {}, ErrorCode.INVALID),
        ([1], {"max_tokens": 0}, ErrorCode.INVALID),
        ([1] * 512, {}, ErrorCode.CONTEXT_LENGTH),
    ],
)
def test_what_can_never_run_is_refused(tokens: list[int], sampling: dict[str, object], code: ErrorCode) -> None:
    engine = make_engine()
    for call in (engine.submit, engine.reserve):
        with pytest.raises(RequestRefused) as refused:
            call(make_request(tokens, **sampling))
        assert refused.value.code is code


def test_the_context_ends_an_answer() -> None:
    engine = make_engine(max_context=24)
    engine.submit(request := make_request(some_tokens(20), max_tokens=100))
    outcome = run_to_end(engine)
    assert len(outcome.tokens[request.request_id]) == 4
    assert outcome.finishes[request.request_id] is Finish.LENGTH


def test_a_pool_smaller_than_the_context_limits_it() -> None:
    assert make_engine(pool_blocks=5).max_context == 20


def test_a_stop_token_is_reported_and_ends_the_answer() -> None:
    prompt = some_tokens(9)
    free = alone(prompt, max_tokens=8)
    engine = make_engine()
    engine.submit(request := make_request(prompt, max_tokens=8, stop_token_ids=(free[3],)))
    outcome = run_to_end(engine)
    stop_at = free.index(free[3])
    assert outcome.tokens[request.request_id] == free[: stop_at + 1]
    assert outcome.finishes[request.request_id] is Finish.STOP


def test_logprobs_are_reported_on_request() -> None:
    engine = make_engine()
    engine.submit(request := make_request(some_tokens(5), max_tokens=1, logprobs=3))
    (delta,) = engine.step().deltas
    assert delta.logprobs is not None
    assert delta.logprobs[0].top[0] == (delta.tokens[0], delta.logprobs[0].logprob)
    assert len(delta.logprobs[0].top) == 3
    engine.cancel(request.request_id)


def test_tokens_are_counted_when_computed() -> None:
    engine = make_engine()
    generate(engine, make_request(some_tokens(16), max_tokens=1))
    generate(engine, make_request(some_tokens(16), max_tokens=1))
    assert engine.stats().computed_tokens == 16 + 4


def test_logits_that_are_not_finite_end_the_request_and_nothing_else() -> None:
    model = tiny_llama()
    engine = make_engine(model)
    model.weights.norm.fill_(float("nan"))
    engine.submit(bad := make_request(some_tokens(5)))
    outcome = run_to_end(engine)
    assert outcome.failed[bad.request_id].code is ErrorCode.INTERNAL
    model.weights.norm.fill_(1.0)
    assert generate(engine, make_request(some_tokens(5))) == alone(some_tokens(5))


def test_what_came_before_logits_that_are_not_finite_is_not_reused() -> None:
    model = tiny_llama()
    engine = make_engine(model, max_batch_tokens=8)
    prompt = some_tokens(30)
    engine.submit(bad := make_request(prompt))
    engine.step()
    model.weights.layers[0].attention_norm.fill_(float("nan"))  # from the second chunk on: rows of NaN
    assert run_to_end(engine).failed[bad.request_id].code is ErrorCode.INTERNAL
    assert engine.stats().blocks_cached == 0
    model.weights.layers[0].attention_norm.fill_(1.0)
    engine.submit(good := make_request(prompt))
    outcome = run_to_end(engine)
    assert outcome.scheduled[good.request_id].pool_hit_tokens == 0
    assert outcome.tokens[good.request_id] == alone(prompt)


def test_a_refused_request_asks_again_after_its_time_and_others_go_first() -> None:
    now = [0.0]
    engine = make_engine(clock=lambda: now[0])
    engine.submit(make_request(some_tokens(20), request_id="x"), hold=True)
    assert engine.step().wants_credit == ["x"]
    engine.defer("x", 3.0)  # type: ignore[arg-type]
    assert engine.step().wants_credit == []
    assert not engine.has_work()
    now[0] = 3.0
    assert engine.has_work()
    assert engine.step().wants_credit == ["x"]
    assert not engine.has_work()
    engine.grant("x")  # type: ignore[arg-type]
    engine.defer("x", 9.0)  # type: ignore[arg-type]
    assert engine.step().prefilled


def test_the_prompt_of_a_request_without_room_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    real = sequence_module.block_hash
    monkeypatch.setattr(sequence_module, "block_hash", lambda parent, tokens: hashed.append(1) or real(parent, tokens))
    engine = make_engine(pool_blocks=16, max_running=2)
    engine.reserve(make_request(some_tokens(40), request_id="first", max_tokens=9))
    hashed.clear()
    second = make_request(some_tokens(40, seed=1), max_tokens=9)
    assert [engine.reserve(second) for _ in range(3)] == [None] * 3
    assert len(hashed) == 10
    engine.reserve(make_request(some_tokens(4), request_id="third", max_tokens=1))
    hashed.clear()
    assert engine.reserve(make_request(some_tokens(40, seed=2), max_tokens=9)) is None
    assert not hashed, "two are running: nothing is hashed"
    engine.cancel("first")  # type: ignore[arg-type]
    assert engine.reserve(second) is not None
    assert not hashed
    engine.cancel(second.request_id)
    engine.check_conservation()


def test_a_refused_request_of_the_same_name_is_another() -> None:
    engine = make_engine(pool_blocks=16)
    engine.reserve(make_request(some_tokens(40), request_id="first", max_tokens=9))
    assert engine.reserve(make_request(some_tokens(40, seed=1), request_id="x", max_tokens=9)) is None
    reservation = engine.reserve(make_request(some_tokens(5), request_id="x", max_tokens=1))
    assert reservation is not None
    assert len(reservation.slots) == 2


@pytest.mark.parametrize(
    ("sampling", "finish"), [({"max_tokens": 1}, Finish.LENGTH), ({"stop_token_ids": (3,)}, Finish.STOP)]
)
def test_a_first_token_that_is_the_last_here_ends_the_request(sampling: dict[str, object], finish: Finish) -> None:
    engine = make_engine()
    assert engine.reserve(make_request(some_tokens(20), request_id="x", **sampling))
    engine.activate("x", 3, [])  # type: ignore[arg-type]
    assert engine.has_work()
    (delta,) = engine.step().deltas
    assert (delta.request_id, delta.index, delta.tokens, delta.finish) == ("x", 1, [], finish)
    engine.check_conservation()
    assert (engine.stats().blocks_used, engine.has_work()) == (0, False)


def test_batch_invariant_logits_are_equal_to_the_bit() -> None:
    prompts = [some_tokens(n, seed=n) for n in (2, 9, 31, 64, 150)]

    def logprobs(budget: int, together: bool) -> list[list[float]]:
        engine = make_engine(tiny_llama(batch_invariant=True), max_batch_tokens=budget)
        outputs: dict[str, list[float]] = {str(i): [] for i in range(len(prompts))}
        for i, prompt in enumerate(prompts):
            engine.submit(make_request(prompt, request_id=str(i), logprobs=1))
            while engine.has_work() and (not together or i == len(prompts) - 1):
                for delta in engine.step().deltas:
                    outputs[delta.request_id].append(delta.logprobs[0].logprob)  # type: ignore[index]
        return list(outputs.values())

    expected = logprobs(512, together=False)
    assert logprobs(17, together=True) == expected
    assert logprobs(64, together=True) == expected
