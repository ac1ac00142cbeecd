"""What the live feed sends: frames of telemetry, cut to what the viewer may see and needs."""

from __future__ import annotations

from typing import Any, Final

import msgspec

MONEY_FIELDS: Final = ("cost_per_hour_usd", "revenue_per_hour_usd")
PER_PROCESS_FIELDS: Final = ("workers", "gateways")
"""Only the newest frame of a snapshot keeps these: the history that is drawn is of totals."""


class FrameHead(msgspec.Struct):
    """The one field of a frame that the feed itself reads."""

    seq: int


_head = msgspec.json.Decoder(FrameHead)


def frame_seq(frame: str) -> int:
    """Sequence number of an encoded frame. Raises msgspec.DecodeError."""
    return _head.decode(frame).seq


def frame_message(frame: str, *, money: bool) -> str:
    """The message that carries one frame to the browser."""
    if not money:
        frame = msgspec.json.encode(_without(msgspec.json.decode(frame), MONEY_FIELDS)).decode()
    return f'{{"kind":"frame","seq":{frame_seq(frame)},"frame":{frame}}}'


def heartbeat_message() -> str:
    return '{"kind":"heartbeat"}'


def snapshot_message(snapshot: dict[str, Any], *, money: bool) -> str:
    return msgspec.json.encode({"kind": "snapshot", **trimmed(snapshot, money=money)}).decode()


def trimmed(snapshot: dict[str, Any], *, money: bool) -> dict[str, Any]:
    """`{seq, frames}` with workers and gateways of the newest frame only, and without money where it is not shown."""
    frames: list[dict[str, Any]] = list(snapshot["frames"])
    hidden = () if money else MONEY_FIELDS
    older = [_without(frame, (*PER_PROCESS_FIELDS, *hidden)) for frame in frames[:-1]]
    return {"seq": snapshot["seq"], "frames": older + [_without(frame, hidden) for frame in frames[-1:]]}


def _without(frame: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in frame.items() if name not in fields}
