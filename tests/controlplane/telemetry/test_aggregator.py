from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.fleet.selectors import NodePrice
from controlplane.metering.pricing import Entry, Price, PriceTable
from controlplane.telemetry import aggregator as module
from controlplane.telemetry.aggregator import Aggregator
from controlplane.telemetry.economics import Economics
from controlplane.telemetry.frames import FORGET_S, STALE_S, WINDOW_S, Frame
from controlplane.telemetry.totals import Totals
from tests.controlplane.telemetry import factories
from tests.controlplane.telemetry.factories import gateway, histogram, worker
from workers.snapshots import Snapshot, encode

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC).timestamp()
PRICE = Price(hit=1, miss=10, output=100, peak=False, entry_id=1)
PRICES = PriceTable(
    entries=(
        Entry(
            entry_id=1,
            model="m",
            off_peak=PRICE,
            peak=PRICE,
            valid_from=datetime(2020, 1, 1, tzinfo=UTC),
            valid_to=None,
        ),
    )
)


class Feed:
    """An aggregator and a clock: snapshots go in at a second, frames come out at the end of it."""

    def __init__(self) -> None:
        self.aggregator = Aggregator()
        self.now = 1000.0
        self.seq = 0

    def give(self, *snapshots: Snapshot) -> Feed:
        for snapshot in snapshots:
            self.aggregator.receive(encode(snapshot), self.now)
        return self

    def tick(self, seconds: float = 1.0) -> tuple[Frame, Totals]:
        self.now += seconds
        self.seq += 1
        return self.aggregator.frame(seq=self.seq, at=NOON + self.now, now=self.now, seconds=seconds, loop_age_s=0.0)

    def wait(self, seconds: float) -> Feed:
        self.now += seconds
        return self


def tokens(frame: Frame) -> tuple[int, int, int]:
    return frame.tokens.hit, frame.tokens.miss, frame.tokens.output


def test_rates_are_between_two_snapshots_and_counts_are_what_is_new() -> None:
    feed = Feed().give(worker(seq=10, hit=100, miss=50, output=7))
    assert tokens(feed.tick()[0]) == (0, 0, 0)  # it ran before we came
    frame, _ = feed.give(worker(seq=11, hit=190, miss=60, output=57)).tick()
    assert tokens(frame) == (90, 10, 50)
    assert (frame.tokens_per_s.hit, frame.tokens_per_s.miss, frame.tokens_per_s.output) == (90, 10, 50)
    assert frame.hit_rate == 0.9
    assert frame.workers[0].tokens_per_s == 60


def test_the_share_of_prefill_that_the_trimmed_tail_saved() -> None:
    frame, _ = Feed().give(worker("spared", miss=100, rows_saved=[0, 0, 90, 90])).give(worker("whole", miss=100)).tick()
    assert {line.worker: line.trimmed for line in frame.workers} == {"spared": 0.45, "whole": 0.0}


def test_a_process_that_just_started_counts_from_zero() -> None:
    frame, _ = Feed().give(worker(seq=1, output=5)).tick()
    assert tokens(frame) == (0, 0, 5)


def test_a_missed_snapshot_loses_no_token() -> None:
    feed = Feed().give(worker(seq=1))
    feed.tick()
    feed.tick()
    frame, _ = feed.give(worker(seq=3, output=40)).tick()
    assert frame.tokens.output == 40
    assert frame.tokens_per_s.output == 20


def test_a_second_that_saw_no_snapshot_shows_no_gap() -> None:
    feed = Feed().give(worker(seq=1)).wait(1.0).give(worker(seq=2, output=10))
    feed.tick()
    frame, _ = feed.tick()
    assert frame.tokens.output == 0
    assert frame.tokens_per_s.output == 10


def test_a_new_epoch_counts_from_zero_and_an_old_one_not_at_all() -> None:
    feed = Feed().give(worker(epoch=1, seq=50, output=1000))
    feed.tick()
    assert feed.give(worker(epoch=2, seq=4, output=30)).tick()[0].tokens.output == 30
    assert feed.give(worker(epoch=1, seq=51, output=1100)).tick()[0].tokens.output == 0
    assert feed.give(worker(epoch=2, seq=4, output=30)).tick()[0].tokens.output == 0
    assert feed.aggregator.events["old_snapshots"] == 2


def test_ranks_are_apart() -> None:
    frame, _ = Feed().give(worker(rank=0, output=1), worker(rank=1, output=2)).tick()
    assert [line.rank for line in frame.workers] == [0, 1]
    assert frame.tokens.output == 3


def test_a_counter_that_goes_back_is_counted_anew_and_told() -> None:
    feed = Feed().give(worker(seq=5, output=100))
    feed.tick()
    assert feed.give(worker(seq=6, output=10)).tick()[0].tokens.output == 10
    assert feed.aggregator.events["counters_went_back"] == 1
    feed.give(gateway(seq=5, requests={"stop": 9}))
    feed.tick()
    assert feed.give(gateway(seq=6, requests={"stop": 2})).tick()[1].requests == 2


def test_silence_makes_stale_then_forgotten() -> None:
    feed = Feed().give(worker(seq=1), gateway(seq=1, running=3))
    fresh, _ = feed.tick()
    assert (fresh.workers[0].stale, fresh.running) == (False, 3)
    stale, _ = feed.wait(STALE_S).tick()
    line = stale.workers[0]
    assert line.stale
    assert line.observed_age_s == STALE_S + 2
    assert line.step_age_s == pytest.approx(STALE_S + 2.01)
    assert (stale.running, stale.gateways[0].stale, line.tokens_per_s) == (0, True, 0)
    feed.wait(FORGET_S).tick()
    assert feed.tick()[0].workers == []


def test_what_cannot_be_read_is_counted() -> None:
    feed = Feed()
    for data in (b"", b"\xff", b"\x93\x01\x02\x03"):
        feed.aggregator.receive(data, feed.now)
    assert feed.aggregator.events["undecodable"] == 3


def test_the_number_of_processes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PROCESSES", 3)
    feed = Feed().give(*(worker(f"w-{number}") for number in range(5)), gateway())
    assert len(feed.tick()[0].workers) == 3
    assert feed.aggregator.events["processes_over_bound"] == 3


def test_percentiles_look_back_ten_seconds_and_then_forget() -> None:
    feed = Feed().give(gateway(seq=1))
    feed.tick()
    frame, _ = feed.give(gateway(seq=2, ttft_s=histogram(0.12), tbt_s=histogram(0.012, 0.014))).tick()
    assert frame.ttft_ms.p50 is not None
    assert 100 <= frame.ttft_ms.p50 <= 150
    assert frame.tbt_ms.p99 is not None
    assert 10 <= frame.tbt_ms.p99 <= 15
    frames = [feed.tick()[0] for _ in range(WINDOW_S)]
    assert frames[-2].ttft_ms.p50 == frame.ttft_ms.p50
    assert frames[-1].ttft_ms.p50 is None
    assert frames[-1].hit_rate is None


def test_requests_and_errors_per_second() -> None:
    feed = Feed().give(gateway(seq=1, requests={"stop": 5}))
    feed.tick()
    frame, totals = feed.give(gateway(seq=2, requests={"stop": 8, "peer_lost": 1})).tick(2.0)
    assert (frame.requests_per_s, frame.errors_per_s) == (2.0, 0.5)
    assert totals.ended == {"stop": 3, "peer_lost": 1}


def test_gateways_add_up() -> None:
    frame, _ = Feed().give(gateway("a", running=1, waiting=2), gateway("b", running=3, waiting=4)).tick()
    assert (frame.running, frame.waiting) == (4, 6)
    assert [line.gateway for line in frame.gateways] == ["a", "b"]


def economics(cards: Mapping[str, int], price: int = 3_000_000) -> Economics:
    nodes = {name: NodePrice(micro_usd_per_card_hour=price, cards=count) for name, count in cards.items()}
    return Economics(nodes=nodes, prices=PRICES)


def test_cost_is_the_cards_in_use() -> None:
    feed = Feed()
    feed.aggregator.economics = economics({"n1": 8, "cpu": 1})
    feed.give(worker("a"), worker("b"), worker("c", node="cpu"), worker("d", node="cpu"), worker("e", node="unknown"))
    frame, totals = feed.tick()
    assert frame.cost_per_hour_usd == "9.000000"  # two cards, and one CPU host that two share
    assert totals.cost_pico == 9 * 10**12 // 3600
    assert feed.wait(STALE_S).tick()[0].cost_per_hour_usd == "0.000000"


def test_revenue_is_exact() -> None:
    feed = Feed()
    feed.aggregator.economics = economics({})
    frame, totals = feed.give(worker(seq=1, hit=5, miss=3, output=2)).tick()
    assert totals.revenue_pico == 5 * 1 + 3 * 10 + 2 * 100
    assert frame.revenue_per_hour_usd == "0.000001"
    feed.give(worker("x", seq=1, model="unpriced", output=4)).tick()
    assert feed.aggregator.events["tokens_without_price"] == 4


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 50), st.booleans(), st.booleans()), max_size=40))
def test_tokens_are_conserved_whatever_is_lost_or_restarted(
    steps: list[tuple[int, int, bool, bool]],
) -> None:
    """Each step: which worker, how many tokens, whether its snapshot gets through, whether it restarts afterwards."""
    feed = Feed()
    epoch, seq, counted, published, reported = [1, 1], [1, 1], [0, 0], [0, 0], 0
    seen = 0
    feed.give(worker("w-0", seq=1), worker("w-1", seq=1))
    for which, count, through, restarts in steps:
        counted[which] += count
        seq[which] += 1
        if through:
            feed.give(worker(f"w-{which}", epoch=epoch[which], seq=seq[which], output=counted[which]))
            reported += counted[which] - published[which]
            published[which] = counted[which]
        if restarts:
            epoch[which], seq[which], counted[which], published[which] = epoch[which] + 1, 1, 0, 0
        seen += feed.tick()[0].tokens.output
    assert seen + feed.tick()[0].tokens.output == reported


def test_gateway_totals_only_grow() -> None:
    feed = Feed().give(gateway("a", requests={"stop": 2}, e2e_s=histogram(1.0)))
    feed.tick()
    feed.wait(FORGET_S + 1).tick()
    feed.give(gateway("b", requests={"stop": 1}, e2e_s=histogram(2.0), decode_s=factories.histogram(0.5))).tick()
    totals = feed.aggregator.gateway_totals
    assert totals.ended == {"stop": 3}
    assert totals.latencies.e2e.total_s == pytest.approx(3.0)
    assert sum(totals.latencies.decode.counts) == 1


def test_hits_are_told_apart_by_where_they_came_from() -> None:
    feed = Feed()
    feed.give(worker(seq=1, hit=100, miss=50, store_hit_tokens=60, recomputed_tokens=10, short_tokens=5)).tick()
    feed.give(worker(seq=2, hit=300, miss=90, store_hit_tokens=160, recomputed_tokens=30, short_tokens=9))
    frame, totals = feed.tick()
    assert (frame.tokens.hit, frame.tokens.store_hit, frame.tokens.recomputed, frame.tokens.short) == (200, 100, 20, 4)
    assert (totals.store_hit, totals.recomputed, totals.short) == (100, 20, 4)
    assert frame.tokens_per_s.store_hit <= frame.tokens_per_s.hit
