"""Arguments of the limit scripts: who asks for them in a gateway's event loop, or in the control queue, is the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from controlplane.metering.events import STREAM_BOUND, USAGE_STREAM, Subject, UsageEvent, encode
from controlplane.metering.limit_scripts import gateway_key, month_of, subject_keys


class Reservation(msgspec.Struct, frozen=True, array_like=True):
    """What Valkey keeps of a reservation for its undoing."""

    month: str
    tokens: int
    subjects: list[Subject]


@dataclass(frozen=True, slots=True)
class Call:
    """A script's keys and arguments."""

    keys: list[str]
    arguments: list[Any]


_reservations: msgspec.msgpack.Decoder[Reservation] = msgspec.msgpack.Decoder(Reservation)


def encode_reservation(reservation: Reservation) -> bytes:
    return msgspec.msgpack.encode(reservation)


def decode_reservation(data: bytes) -> Reservation:
    """Raises msgspec.DecodeError."""
    return _reservations.decode(data)


def settle_call(event: UsageEvent, *, cost_nano: int, publish: bool) -> Call:
    """`publish`: the event goes on the stream in the same step."""
    intent = event.intent
    month = month_of(event.admitted_at)
    names = [subject.name for subject in intent.subjects]
    arguments: list[Any] = [
        event.request_id,
        encode(event) if publish else b"",
        STREAM_BOUND,
        intent.reserved_tokens,
        event.final.total,
        cost_nano,
        int(intent.local),
    ]
    for subject in intent.subjects:
        arguments += [
            _or_none(subject.requests_per_minute),
            _or_none(subject.tokens_per_minute),
            int(subject.budgeted),
        ]
    return Call([USAGE_STREAM, *subject_keys(names, month), gateway_key(event.journal)], arguments)


def refund_call(request_id: str, reservation: Reservation, *, journal: str) -> Call:
    names = [subject.name for subject in reservation.subjects]
    arguments: list[Any] = [request_id, reservation.tokens]
    for subject in reservation.subjects:
        arguments += [_or_none(subject.requests_per_minute), _or_none(subject.tokens_per_minute)]
    return Call([*subject_keys(names, reservation.month), gateway_key(journal)], arguments)


def _or_none(limit: int | None) -> int:
    return -1 if limit is None else limit
