"""A request's sections (window rings, states) on their way: cut into frames of bounded size, put together again.

Sections are pushed behind the last blocks, on the link that announces those: a few megabytes a request at most, in
parts that leave room for other frames. `StateReady` ends them and says what must have come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from workers.protocol import ErrorCode, RequestId, StateReady, StateSectionPart, StateSectionRef
from workers.transfer.base import TransferError

PART_BYTES = 1024 * 1024
MAX_SECTIONS_BYTES = 256 * 1024 * 1024
"""Of one request: what a decode worker keeps in memory for a peer before it looks at it."""


def references(sections: Sequence[tuple[str, int, bytes]]) -> list[StateSectionRef]:
    return [StateSectionRef(name=name, version=version, nbytes=len(data)) for name, version, data in sections]


def parts(request_id: RequestId, sections: Sequence[tuple[str, int, bytes]]) -> Iterator[StateSectionPart]:
    """The bytes of all sections in order, at most `PART_BYTES` a frame."""
    for name, _, data in sections:
        for start in range(0, len(data), PART_BYTES):
            yield StateSectionPart(request_id=request_id, name=name, data=data[start : start + PART_BYTES])


@dataclass(slots=True)
class IncomingSections:
    """What came of one request's sections so far."""

    _data: dict[str, bytearray] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, part: StateSectionPart) -> None:
        """Raises TransferError where the peer sends more than anybody has."""
        self._bytes += len(part.data)
        if self._bytes > MAX_SECTIONS_BYTES:
            raise TransferError(ErrorCode.TRANSFER, f"sections of more than {MAX_SECTIONS_BYTES} bytes came")
        self._data.setdefault(part.name, bytearray()).extend(part.data)

    def complete(self, end: StateReady) -> list[tuple[str, int, bytes]]:
        """All sections as they were cut. Raises TransferError where they are not what `end` says."""
        came = {name: len(data) for name, data in self._data.items()}
        said = {reference.name: reference.nbytes for reference in end.sections}
        if came != {name: nbytes for name, nbytes in said.items() if nbytes}:
            raise TransferError(ErrorCode.TRANSFER, f"sections of {said} bytes were announced, {came} came")
        return [
            (reference.name, reference.version, bytes(self._data.get(reference.name, b"")))
            for reference in end.sections
        ]
