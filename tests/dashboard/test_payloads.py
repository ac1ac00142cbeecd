from __future__ import annotations

import json

import msgspec
import pytest

from dashboard.payloads import MONEY_FIELDS, frame_message, frame_seq, heartbeat_message, snapshot_message, trimmed
from tests.dashboard import factories


def test_a_frame_travels_unchanged_to_who_may_see_money() -> None:
    text = factories.encoded(5)
    message = json.loads(frame_message(text, money=True))
    assert message == {"kind": "frame", "seq": 5, "frame": json.loads(text)}


def test_a_frame_carries_no_money_for_the_others() -> None:
    message = json.loads(frame_message(factories.encoded(5), money=False))
    assert message["seq"] == 5
    assert not set(MONEY_FIELDS) & set(message["frame"])
    assert message["frame"]["workers"]


def test_only_the_newest_frame_of_a_snapshot_lists_workers() -> None:
    frames = [json.loads(factories.encoded(seq)) for seq in (1, 2, 3)]
    shown = trimmed({"seq": 3, "frames": frames}, money=True)
    assert ["workers" in frame for frame in shown["frames"]] == [False, False, True]
    assert [frame["seq"] for frame in shown["frames"]] == [1, 2, 3]


def test_a_snapshot_carries_no_money_for_the_others() -> None:
    frames = [json.loads(factories.encoded(seq)) for seq in (1, 2)]
    message = json.loads(snapshot_message({"seq": 2, "frames": frames}, money=False))
    assert message["kind"] == "snapshot"
    assert not [frame for frame in message["frames"] if set(MONEY_FIELDS) & set(frame)]


def test_an_empty_snapshot_is_one() -> None:
    assert trimmed({"seq": 0, "frames": []}, money=True) == {"seq": 0, "frames": []}


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        frame_seq('{"at": 1}')


def test_a_heartbeat_is_json() -> None:
    assert json.loads(heartbeat_message()) == {"kind": "heartbeat"}
