"""Usage, prices, keys and tenants over HTTP, and who may ask."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.accounts import services
from controlplane.accounts.models import APIKey
from controlplane.accounts.permissions import SYSTEM, Role, Scope
from controlplane.metering.ledger import usage_record
from tests.controlplane.accounts import factories
from tests.controlplane.metering.factories import event
from tests.streaming import streamed

pytestmark = [pytest.mark.integration, pytest.mark.django_db]

AT = datetime(2026, 11, 28, 12, 20, tzinfo=UTC)
SPAN = {"start": "2026-11-28T00:00:00Z", "end": "2026-11-29T00:00:00Z"}


def browser(role: Role, tenant: Any = None) -> Client:
    client = Client()
    client.force_login(factories.user(role, tenant=tenant))
    return client


def test_usage_by_hour_of_a_zone_for_who_may_see_it() -> None:
    acme = factories.tenant("acme")
    usage_record([event(AT), event(AT, tenant="other")])
    everywhere, here = browser(Role.BILLING), browser(Role.BILLING, acme)
    found = everywhere.get("/api/usage", {**SPAN, "step": "hour", "by": "tenant", "zone": "Asia/Tokyo"}).json()
    assert found["total"]["requests"] == 2
    assert {row["tenant"] for row in found["rows"]} == {"acme", "other"}
    assert found["rows"][0]["at"] == "2026-11-28T21:00:00+09:00"
    assert found["rows"][0]["amount_usd"] == "0.00002859"
    assert here.get("/api/usage", SPAN).json()["total"]["requests"] == 1
    assert here.get("/api/usage", {**SPAN, "tenant": "other"}).status_code == 403
    assert browser(Role.VIEWER).get("/api/usage", SPAN).status_code == 403
    assert everywhere.get("/api/usage", {**SPAN, "zone": "Mars"}).status_code == 400
    assert everywhere.get("/api/usage", {**SPAN, "end": SPAN["start"]}).status_code == 400


def test_a_key_with_the_scope_tenant_sees_its_own() -> None:
    acme = factories.tenant("acme")
    usage_record([event(AT), event(AT, tenant="other")])
    _, raw = services.key_create(actor=SYSTEM, tenant=acme, name="x", scopes=[Scope.TENANT])
    found = Client().get("/api/usage", SPAN, headers={"authorization": f"Bearer {raw}"}).json()
    assert found["total"]["requests"] == 1


def test_csv_of_hours_and_of_requests() -> None:
    usage_record([event(AT), event(AT + timedelta(hours=2)), event(AT, caller="=cmd()")])
    client = browser(Role.BILLING)
    response = client.get("/api/usage.csv", SPAN)
    assert response["content-disposition"].endswith('-hours.csv"')
    rows = list(csv.DictReader(io.StringIO(streamed(response))))
    assert [row["requests"] for row in rows] == ["1", "1", "1"]
    assert sum(int(row["amount_pico_usd"]) for row in rows) == 3 * 28_590_000
    assert {row["key"] for row in rows} == {"'=cmd()", "gk-abcdefgh"}
    rows = list(csv.DictReader(io.StringIO(streamed(client.get("/api/usage.csv", {**SPAN, "detail": "requests"})))))
    assert len({row["request_id"] for row in rows}) == 3


def test_prices_and_holidays() -> None:
    client = browser(Role.BILLING)
    book = client.get("/api/prices").json()
    assert book["entries"][0]["miss"] == 150_000
    assert book["peak_windows"][0]["weekdays"] == ["Mon", "Tue", "Wed", "Thu", "Fri"]
    later = (timezone.now() + timedelta(days=2)).isoformat()
    rates = dict.fromkeys(("hit", "miss", "output", "peak_hit", "peak_miss", "peak_output"), 5)
    new = {"model": "tiny", "valid_from": later, **rates}
    assert client.post("/api/prices", new, content_type="application/json").status_code == 201
    past = {**new, "valid_from": "2020-01-01T00:00:00Z"}
    assert client.post("/api/prices", past, content_type="application/json").status_code == 400
    day = (timezone.now() + timedelta(days=3)).date().isoformat()
    holiday = {"day": day, "name": "Feast"}
    assert client.post("/api/prices/holidays", holiday, content_type="application/json").status_code == 201
    assert browser(Role.OPERATOR).get("/api/prices").status_code == 403


def test_keys_and_tenants() -> None:
    client = browser(Role.ADMINISTRATOR)

    def post(path: str, body: Any) -> Any:
        return client.post(path, body, content_type="application/json")

    assert post("/api/tenants", {"slug": "acme", "name": "Acme", "tokens_per_minute": 9}).status_code == 201
    made = post("/api/keys", {"tenant": "acme", "name": "ci", "scopes": ["inference"], "requests_per_minute": 3})
    assert made.status_code == 201
    assert made["cache-control"] == "no-store"
    prefix, raw = made.json()["prefix"], made.json()["key"]
    assert raw.startswith(prefix)
    assert raw not in client.get("/api/keys").content.decode()
    changed = client.patch(f"/api/keys/{prefix}", {"budget_micro_usd": 5}, content_type="application/json").json()
    assert changed["limits"]["requests_per_minute"] == 3
    assert changed["limits"]["budget_micro_usd"] == 5
    rotated = post(f"/api/keys/{prefix}/rotate", {"overlap_hours": 1}).json()
    assert client.delete(f"/api/keys/{rotated['prefix']}").status_code == 204
    assert client.get(f"/api/keys/{rotated['prefix']}").json()["state"] == "revoked"
    limits = client.patch("/api/tenants/acme", {"tokens_per_minute": None}, content_type="application/json").json()
    assert limits["limits"]["tokens_per_minute"] is None
    assert client.delete("/api/tenants/acme").status_code == 204
    assert client.get("/api/tenants/acme").status_code == 404
    assert not APIKey.objects.exists()
    outsider = browser(Role.VIEWER)
    assert outsider.get("/api/keys").status_code == 403
    assert outsider.get("/api/tenants").status_code == 403
