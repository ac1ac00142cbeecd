"""The journal on disk: what a gateway that died leaves behind is read exactly, and nothing stays for ever."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.inference import journal as journals
from controlplane.inference.journal import JournalFull, UsageJournal
from controlplane.metering.events import GATEWAY_LOST, Counts, Ended, Intent
from controlplane.metering.journal import abandoned, billable, lock, read_events, segments


def intent(journal: UsageJournal, request_id: str) -> Intent:
    seq, slot = journal.next_place()
    return Intent(
        seq=seq, slot=slot, request_id=request_id, tenant="t", caller="c", model="m", deployment="d", gateway="g",
        admitted_us=1,
    )  # fmt: skip


def ended(of: Intent, **counts: int) -> Ended:
    return Ended(seq=of.seq, outcome="stop", ended_us=2, **counts)


@pytest.fixture
async def journal(tmp_path: Path) -> Iterator[UsageJournal]:  # type: ignore[misc]
    made = UsageJournal(tmp_path, name="g-1", open_slots=2, backlog=3)
    yield made
    made.close(everything_settled=False)


async def test_requests_that_were_cut_off_have_what_was_counted(journal: UsageJournal) -> None:
    whole, cut = intent(journal, "whole"), intent(journal, "cut")
    await asyncio.gather(journal.admit(whole), journal.admit(cut))
    journal.progress(cut.seq, pool_hit=1, store_hit=2, miss=3, output=4)
    journal.progress(cut.seq, pool_hit=1, store_hit=2, miss=3, output=5)
    journal.end(ended(whole, miss=7, output=8))
    first, second = read_events(journal.folder)
    assert (first.request_id, first.final.outcome, first.final.output) == ("whole", "stop", 8)
    assert (second.final.outcome, second.counts) == (GATEWAY_LOST, Counts(pool_hit=1, store_hit=2, miss=3, output=5))


async def test_a_slot_of_another_request_says_nothing_of_this_one(journal: UsageJournal) -> None:
    first = intent(journal, "first")
    await journal.admit(first)
    journal.progress(first.seq, pool_hit=0, store_hit=0, miss=9, output=9)
    journal.end(ended(first))
    for name in ("second", "third"):
        await journal.admit(intent(journal, name))
    events = {event.request_id: event for event in read_events(journal.folder)}
    assert events["second"].counts == events["third"].counts == Counts()


async def test_what_was_torn_off_is_left_out(journal: UsageJournal) -> None:
    kept, torn = intent(journal, "kept"), intent(journal, "torn")
    await journal.admit(kept)
    size = segments(journal.folder)[0].stat().st_size
    await journal.admit(torn)
    os.truncate(segments(journal.folder)[0], size + 9)
    assert [event.request_id for event in read_events(journal.folder)] == ["kept"]


async def test_bounds_on_what_runs_and_on_what_the_ledger_lacks(journal: UsageJournal) -> None:
    for number in range(3):
        one = intent(journal, str(number))
        await journal.admit(one)
        journal.end(ended(one))
    with pytest.raises(JournalFull, match="ledger"):
        journal.next_place()
    journal.settled(1)
    seq, slot = journal.next_place()
    journal.next_place()
    with pytest.raises(JournalFull, match="slot"):
        journal.next_place()
    journal.give_up(seq, slot)
    journal.next_place()


async def test_segments_go_when_the_ledger_has_their_requests(
    journal: UsageJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "SEGMENT_BYTES", 1)
    first, second = intent(journal, "first"), intent(journal, "second")
    await journal.admit(first)
    await journal.admit(second)
    journal.end(ended(first))
    assert len(segments(journal.folder)) == 3
    journal.settled(first.seq)
    assert [event.request_id for event in read_events(journal.folder)] == ["second"]


async def test_only_the_journals_of_the_dead_are_taken(tmp_path: Path) -> None:
    living = UsageJournal(tmp_path, name="living", open_slots=1, backlog=1)
    dead = UsageJournal(tmp_path, name="dead", open_slots=1, backlog=1)
    dead.close(everything_settled=False)
    with abandoned(tmp_path) as found:
        assert [folder.name for folder in found] == ["dead"]
        assert lock(found[0]) is None  # ours meanwhile
    living.close(everything_settled=True)
    assert not (tmp_path / "living").exists()


async def test_a_disk_that_refuses_admits_nothing(journal: UsageJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journals.os, "write", full)
    with pytest.raises(JournalFull, match="No space"):
        await journal.admit(intent(journal, "x"))
    assert journal.unsettled == 0
    journal.next_place()
    journal.next_place()


@pytest.mark.parametrize(
    ("outcome", "output", "miss"),
    [
        ("peer_lost", 0, 0),
        (GATEWAY_LOST, 0, 0),
        ("peer_lost", 1, 5),
        ("disconnected", 0, 5),
        ("stop", 1, 5),
        ("deadline_exceeded", 0, 0),
        ("deadline_exceeded", 1, 5),
    ],
)
def test_what_failed_before_the_first_token_is_free(outcome: str, output: int, miss: int) -> None:
    assert billable(Counts(miss=5, output=output), outcome)["miss"] == miss


async def test_a_slot_whose_end_could_not_be_written_is_free_when_the_ledger_has_the_request(
    journal: UsageJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = intent(journal, "one")
    await journal.admit(one)

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(journals.os, "write", full)
        journal.end(ended(one))
    journal.next_place()
    with pytest.raises(JournalFull, match="slot"):
        journal.next_place()
    journal.settled(one.seq)
    journal.next_place()


async def test_what_could_not_be_synced_does_not_wait_for_the_ledger(
    journal: UsageJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(journals.os, "fdatasync", broken)
    for number in range(4):  # more than the backlog takes
        with pytest.raises(JournalFull, match="written"):
            await journal.admit(intent(journal, str(number)))
    assert journal.unsettled == 0
