from __future__ import annotations

import pytest
from django.db import transaction
from django.test import Client

from controlplane.accounts.permissions import SYSTEM, Role
from controlplane.audit.services import record
from dashboard.views.audit import PAGE_SIZE, Change, changes
from tests.controlplane.accounts import factories as accounts


def test_only_what_differs_is_a_change() -> None:
    before = {"name": "a", "scopes": ["inference"], "revoked": False}
    after = {"name": "a", "scopes": ["inference", "models"], "revoked": True}
    assert changes(before, after) == [
        Change(field="revoked", before="no", after="yes"),
        Change(field="scopes", before="inference", after="inference, models"),
    ]


def test_a_creation_has_no_before() -> None:
    assert changes(None, {"name": "a", "expires_at": None}) == [Change(field="name", before=None, after="a")]
    assert changes(None, None) == []


def test_values_read_as_words() -> None:
    after = {"replicas": {"prefill": 1, "decode": 2}, "aliases": ["a", "b"], "ready": False, "cores": 2}
    shown = {change.field: change.after for change in changes(None, after)}
    assert shown == {"replicas": "decode 2, prefill 1", "aliases": "a, b", "ready": "no", "cores": "2"}


@pytest.fixture
def reader(client: Client, valkey_url: str) -> Client:
    client.force_login(accounts.user(Role.ADMINISTRATOR))
    return client


def note(number: int, action: str = "pool.scale") -> None:
    with transaction.atomic():
        record(actor=SYSTEM, action=action, target=f"pool:{number:03}", before=None, after={"replicas": number})


@pytest.mark.integration
@pytest.mark.django_db
def test_pages_go_back_in_time_without_loss(reader: Client) -> None:
    for number in range(PAGE_SIZE + 5):
        note(number)
    first = reader.get("/audit?action=pool.scale")
    shown = [entry.event.target for entry in first.context["entries"]]
    older = reader.get(f"/audit?{first.context['older']}")
    shown += [entry.event.target for entry in older.context["entries"]]
    assert shown == [f"pool:{number:03}" for number in reversed(range(PAGE_SIZE + 5))]
    assert older.context["older"] == ""


@pytest.mark.integration
@pytest.mark.django_db
def test_filters_narrow_the_list(reader: Client) -> None:
    note(1)
    note(2, action="deployment.create")
    part = reader.get("/audit", {"action": "deployment"}, headers={"HX-Request": "true"}).content.decode()
    assert "pool:002" in part
    assert "pool:001" not in part
    assert "No change matches" in reader.get("/audit?actor=nobody").content.decode()


@pytest.mark.integration
@pytest.mark.django_db
@pytest.mark.parametrize("query", ["before=x", "before=0", f"action={'a' * 65}"])
def test_a_filter_that_makes_no_sense_is_left_out(reader: Client, query: str) -> None:
    note(1)
    assert "pool:001" in reader.get(f"/audit?{query}").content.decode()


@pytest.mark.integration
@pytest.mark.django_db
def test_a_value_that_is_a_time_is_shown_as_one(reader: Client) -> None:
    with transaction.atomic():
        after = {"expires_at": "2027-02-27T17:11:33.748819+00:00"}
        record(actor=SYSTEM, action="key.create", target="key:x", before=None, after=after)
    page = reader.get("/audit?action=key.create").content.decode()
    assert '<time datetime="2027-02-27T17:11:33.748819+00:00">2027-02-27 17:11:33 UTC</time>' in page
