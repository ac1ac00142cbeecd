from __future__ import annotations

import pytest

from workers.protocol import HEAD_BYTES, ErrorCode, RequestId, StateReady, StateSectionPart, decode, encode
from workers.transfer.base import TransferError
from workers.transfer.sections import MAX_SECTIONS_BYTES, PART_BYTES, IncomingSections, parts, references

NAME = RequestId("a")
SECTIONS = [("ring", 1, bytes(range(256)) * 9000), ("empty", 2, b""), ("state", 7, b"abc")]


def end(sections: list[tuple[str, int, bytes]]) -> StateReady:
    return StateReady(request_id=NAME, first_token=1, sections=references(sections))


def test_sections_come_out_as_they_went_in_whatever_their_size() -> None:
    incoming = IncomingSections()
    frames = [encode(part) for part in parts(NAME, SECTIONS)]
    assert len(frames) == 4
    assert max(map(len, frames)) < PART_BYTES + 100
    for frame in frames:
        part = decode(frame[:HEAD_BYTES], frame[HEAD_BYTES:])
        assert isinstance(part, StateSectionPart)
        incoming.add(part)
    assert incoming.complete(end(SECTIONS)) == SECTIONS


@pytest.mark.parametrize(
    "said", [[], SECTIONS[:2], [("ring", 1, b"short"), *SECTIONS[1:]], [*SECTIONS, ("b", 1, b"b")]]
)
def test_what_came_must_be_what_was_said(said: list[tuple[str, int, bytes]]) -> None:
    incoming = IncomingSections()
    for part in parts(NAME, SECTIONS):
        incoming.add(part)
    with pytest.raises(TransferError) as error:
        incoming.complete(end(said))
    assert error.value.code is ErrorCode.TRANSFER


def test_a_peer_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.transfer.sections.MAX_SECTIONS_BYTES", 10)
    incoming = IncomingSections()
    incoming.add(StateSectionPart(request_id=NAME, name="a", data=b"123456"))
    with pytest.raises(TransferError):
        incoming.add(StateSectionPart(request_id=NAME, name="b", data=b"123456"))
    assert MAX_SECTIONS_BYTES > 2**20
