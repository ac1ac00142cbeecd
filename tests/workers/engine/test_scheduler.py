"""The scheduler without a model: requests are `Sequence`s, a step is played by adding what was picked."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.engine.factories import identity, make_request, some_tokens
from workers.engine.blocks import BlockPool
from workers.engine.scheduler import MAX_PREFILLS, PATIENCE, Chunk, Scheduler
from workers.engine.sequence import Phase, Sequence
from workers.identity import root_hash

BLOCK = 4


def make_scheduler(*, blocks: int = 100, budget: int = 32, running: int = 8, output_reserve: int = 1000) -> Scheduler:
    pool = BlockPool(blocks, lambda slot: None)
    return Scheduler(pool, block_tokens=BLOCK, token_budget=budget, max_running=running, output_reserve=output_reserve)


def make_sequence(
    prompt: int, *, output: int = 4, hold: bool = False, priority: int = 0, arrived: float = 0.0, seed: int = 0
) -> Sequence:
    request = make_request(some_tokens(prompt, seed=seed), priority=priority, arrived=arrived, max_tokens=output)
    sequence = Sequence(
        request=request,
        phase=Phase.WAITING,
        hold=hold,
        root=root_hash(identity(), request.salt),
        block_tokens=BLOCK,
        output_limit=output,
        tokens=list(request.tokens),
    )
    sequence.extend_chain(prompt)
    return sequence


def add(scheduler: Scheduler, *sequences: Sequence) -> None:
    for sequence in sequences:
        scheduler.enqueue(sequence)


def play(scheduler: Scheduler) -> list[Chunk]:
    """One step: admit, pick, and do as the engine would, ending requests at their limit."""
    scheduler.admit(0.0)
    chunks = scheduler.pick()
    for chunk in chunks:
        sequence = chunk.sequence
        missing = -(-(sequence.computed + chunk.count) // BLOCK) - len(sequence.slots)
        if missing > 0:
            sequence.slots.extend(scheduler.pool.allocate(missing, reserved=True))
            sequence.reserved -= missing
        sequence.computed += chunk.count
        if sequence.computed < len(sequence.tokens):
            continue
        sequence.tokens.append(1)
        if sequence.phase is Phase.PREFILL:
            scheduler.remove(sequence)
            sequence.phase = Phase.DECODE
            scheduler.decoding.append(sequence)
        if sequence.outputs >= sequence.output_limit:
            end(scheduler, sequence)
    return chunks


def end(scheduler: Scheduler, sequence: Sequence) -> None:
    scheduler.remove(sequence)
    scheduler.leave_seat(sequence)
    scheduler.pool.release(sequence.slots)
    scheduler.pool.unreserve(sequence.reserved)
    sequence.slots, sequence.reserved = [], 0


def test_decoding_requests_come_first_and_all_of_them() -> None:
    scheduler = make_scheduler(budget=8)
    decoding = [make_sequence(2, output=50) for _ in range(3)]
    add(scheduler, *decoding)
    play(scheduler)
    add(scheduler, long := make_sequence(100))
    chunks = play(scheduler)
    assert [(chunk.sequence, chunk.count) for chunk in chunks] == [(s, 1) for s in decoding] + [(long, 5)]


def test_a_prompt_runs_in_chunks_under_the_budget() -> None:
    scheduler = make_scheduler(budget=32)
    add(scheduler, make_sequence(70))
    assert [sum(chunk.count for chunk in play(scheduler)) for _ in range(3)] == [32, 32, 6]


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    scheduler = make_scheduler(budget=32)
    add(scheduler, long := make_sequence(300, arrived=0.0))
    play(scheduler)
    add(scheduler, short := make_sequence(10, arrived=1.0))
    counts = {id(chunk.sequence): chunk.count for chunk in play(scheduler)}
    assert counts == {id(long): 22, id(short): 10}


def test_the_oldest_prompt_always_moves() -> None:
    scheduler = make_scheduler(budget=32)
    add(scheduler, long := make_sequence(300, arrived=0.0))
    play(scheduler)
    add(scheduler, *(make_sequence(20, arrived=1.0 + n) for n in range(3)))
    counts = {id(chunk.sequence): chunk.count for chunk in play(scheduler)}
    assert counts[id(long)] == 16


def test_smaller_numbers_of_priority_start_first() -> None:
    scheduler = make_scheduler(running=1)
    add(scheduler, make_sequence(4, priority=1, arrived=0.0), urgent := make_sequence(4, priority=0, arrived=1.0))
    started, *_ = scheduler.admit(0.0).started
    assert started is urgent


def test_room_for_prompt_and_output_is_taken_at_the_start() -> None:
    scheduler = make_scheduler(blocks=10)
    add(scheduler, sequence := make_sequence(9, output=8))
    scheduler.admit(0.0)
    # 9 prompt tokens are 3 blocks; of 8 output tokens 7 get rows: 16 rows are 4 blocks.
    assert (len(sequence.slots), sequence.reserved) == (3, 1)
    assert scheduler.pool.available == 6


def test_of_a_long_output_only_the_beginning_is_set_aside() -> None:
    scheduler = make_scheduler(output_reserve=8)
    add(scheduler, sequence := make_sequence(9, output=500))
    scheduler.admit(0.0)
    assert (len(sequence.slots), sequence.reserved) == (3, 1)


def test_nothing_starts_while_a_request_is_suspended() -> None:
    scheduler = make_scheduler()
    add(scheduler, first := make_sequence(4, output=50))
    play(scheduler)
    scheduler.suspend(first)
    add(scheduler, second := make_sequence(4))
    assert scheduler.admit(0.0).started == []
    assert not scheduler.reserve(make_sequence(4))
    scheduler.decode(first)
    assert scheduler.admit(0.0).started == [second]


def test_one_without_room_lets_smaller_ones_pass_but_not_for_ever() -> None:
    scheduler = make_scheduler(blocks=12)
    add(scheduler, holder := make_sequence(8, output=25))
    scheduler.admit(0.0)
    add(scheduler, big := make_sequence(40, output=8, arrived=1.0))
    for number in range(PATIENCE):
        add(scheduler, small := make_sequence(2, output=1, arrived=2.0 + number))
        assert scheduler.admit(0.0).started == [small]
        end(scheduler, small)
    add(scheduler, make_sequence(2, output=1, arrived=1000.0))
    assert scheduler.admit(0.0).started == []
    end(scheduler, holder)
    assert scheduler.admit(0.0).started == [big]


def test_few_long_prompts_at_a_time() -> None:
    scheduler = make_scheduler(blocks=1000)
    add(scheduler, *(make_sequence(100, arrived=n) for n in range(MAX_PREFILLS + 2)))
    assert len(scheduler.admit(0.0).started) == MAX_PREFILLS
    add(scheduler, short := make_sequence(3, arrived=99.0))
    assert scheduler.admit(0.0).started == [short]


def test_credit_is_asked_for_once_and_only_when_the_request_could_start() -> None:
    scheduler = make_scheduler(blocks=10)
    one, two = make_sequence(24, hold=True, arrived=0.0), make_sequence(24, hold=True, arrived=1.0, seed=1)
    add(scheduler, one, two)
    assert scheduler.admit(0.0).asking == [one]
    assert scheduler.admit(0.0).asking == []
    assert scheduler.pool.used == 0
    one.phase = Phase.GRANTED
    assert scheduler.admit(0.0).started == [one]
    assert one.reserved == 0


def test_one_that_waits_for_credit_does_not_block_the_next() -> None:
    scheduler = make_scheduler()
    one, two = make_sequence(8, hold=True, arrived=0.0), make_sequence(8, hold=True, arrived=1.0)
    add(scheduler, one)
    scheduler.admit(0.0)
    add(scheduler, two)
    assert scheduler.admit(0.0).asking == [two]


def test_one_that_is_refused_credit_gives_its_turn_to_the_next() -> None:
    scheduler = make_scheduler(blocks=1000, budget=32)
    refused = [make_sequence(100, hold=True, arrived=float(n), seed=n) for n in range(MAX_PREFILLS)]
    add(scheduler, *refused, behind := make_sequence(100, hold=True, arrived=99.0, seed=99))
    assert scheduler.admit(0.0).asking == refused
    for sequence in refused:
        scheduler.defer(sequence, 5.0)
    assert scheduler.next_turn(0.0) == 5.0
    assert scheduler.admit(1.0).asking == [behind]
    scheduler.defer(behind, float("inf"))
    assert scheduler.admit(5.0).asking == refused
    assert scheduler.next_turn(5.0) == float("inf")


def test_a_deferred_request_promises_no_blocks() -> None:
    scheduler = make_scheduler(blocks=10)
    one, two = make_sequence(24, hold=True, arrived=0.0), make_sequence(24, hold=True, arrived=1.0, seed=1)
    add(scheduler, one, two)
    assert scheduler.admit(0.0).asking == [one]
    scheduler.defer(one, 9.0)
    assert scheduler.admit(0.0).asking == [two]


def test_credit_that_comes_after_all_counts() -> None:
    scheduler = make_scheduler()
    add(scheduler, one := make_sequence(8, hold=True))
    scheduler.admit(0.0)
    scheduler.defer(one, float("inf"))
    one.phase = Phase.GRANTED
    scheduler.defer(one, float("inf"))
    assert scheduler.admit(0.0).started == [one]


def test_what_is_known_of_a_prefix_follows_the_pool() -> None:
    scheduler = make_scheduler(blocks=12)
    waiting = make_sequence(17)
    assert scheduler.hits(waiting) == []
    add(scheduler, first := make_sequence(17, output=1))
    scheduler.admit(0.0)
    for index, block in enumerate(first.chain[:3]):
        scheduler.pool.publish(first.slots[index], block)
    assert scheduler.hits(waiting) == first.slots[:3]
    scheduler.pool.publish(first.slots[3], first.chain[3])
    assert scheduler.hits(waiting) == first.slots[:4]
    scheduler.pool.unpublish(first.slots[1:2])
    assert scheduler.hits(waiting) == first.slots[:1]


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 30), st.integers(0, 2)), min_size=1, max_size=25),
    blocks=st.integers(32, 80),
    budget=st.integers(4, 64),
)
def test_every_request_ends_within_bounds(requests: list[tuple[int, int, int]], blocks: int, budget: int) -> None:
    scheduler = make_scheduler(blocks=blocks, budget=budget, running=8)
    sequences = [
        make_sequence(prompt, output=output, priority=priority, arrived=float(number), seed=number)
        for number, (prompt, output, priority) in enumerate(requests)
    ]
    add(scheduler, *sequences)
    steps = 0
    while scheduler.waiting or scheduler.running:
        chunks = play(scheduler)
        assert 0 < sum(chunk.count for chunk in chunks) <= budget, "a step without progress"
        assert scheduler.running <= 8
        scheduler.pool.check((s.slots for s in sequences), sum(s.reserved for s in sequences))
        steps += 1
    assert all(s.outputs == s.output_limit for s in sequences)
    assert steps <= sum(prompt + output for prompt, output, _ in requests)
