from __future__ import annotations

import pytest
from django.test import Client

from controlplane.accounts.permissions import Role
from tests.controlplane.accounts import factories as accounts
from tests.dashboard import factories

pytestmark = [pytest.mark.integration, pytest.mark.django_db]


def test_a_snapshot_heals_a_gap(client: Client, valkey_url: str) -> None:
    factories.store_frames(valkey_url, *range(1, 11))
    client.force_login(accounts.user(Role.ADMINISTRATOR))
    snapshot = client.get("/live/snapshot?seconds=4").json()
    assert snapshot["seq"] == 10
    assert [frame["seq"] for frame in snapshot["frames"]] == [7, 8, 9, 10]
    assert snapshot["frames"][-1]["workers"]


def test_before_the_first_frame_it_is_empty(client: Client, valkey_url: str) -> None:
    client.force_login(accounts.user(Role.VIEWER))
    assert client.get("/live/snapshot").json() == {"seq": 0, "frames": []}


def test_money_is_left_out_for_viewers(client: Client, valkey_url: str) -> None:
    factories.store_frames(valkey_url, 1)
    client.force_login(accounts.user(Role.VIEWER))
    assert "cost_per_hour_usd" not in client.get("/live/snapshot").json()["frames"][0]


@pytest.mark.parametrize("seconds", ["0", "3601", "-5", "ten", "٣", ""])
def test_a_window_that_makes_no_sense_is_refused(client: Client, valkey_url: str, seconds: str) -> None:
    client.force_login(accounts.user(Role.VIEWER))
    answer = client.get("/live/snapshot", {"seconds": seconds})
    assert answer.status_code == 400
    assert "3600" in answer.json()["error"]
