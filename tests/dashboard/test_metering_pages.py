"""Usage, prices, tenants, and what the page of keys does with limits: forms, refusals, who sees what."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.accounts import services
from controlplane.accounts.limits import Limits
from controlplane.accounts.models import APIKey, Tenant
from controlplane.accounts.permissions import SYSTEM, Role, Scope
from controlplane.metering.ledger import usage_record
from controlplane.metering.models import Holiday, PriceEntry
from tests.controlplane.accounts import factories
from tests.controlplane.metering.factories import event
from tests.streaming import streamed

pytestmark = [pytest.mark.integration, pytest.mark.django_db]


def browser(role: Role, tenant: Tenant | None = None) -> Client:
    client = Client()
    client.force_login(factories.user(role, tenant=tenant))
    return client


def page(client: Client, path: str, **data: Any) -> str:
    response = client.get(path, data)
    assert response.status_code == 200, response.status_code
    return response.content.decode()


def test_usage_in_the_zone_of_the_browser() -> None:
    usage_record([event(timezone.now().astimezone(UTC) - timedelta(hours=2), tenant="acme")])
    client = browser(Role.BILLING)
    assert "Tokens per hour" in page(client, "/usage")
    client.cookies["galley_zone"] = "Asia%2FKolkata"
    found = page(client, "/usage", span="7d")
    assert "Asia/Kolkata" in found
    assert "Tokens per day" in found
    assert "shown in UTC" in page(client, "/usage", zone="Mars")
    exported = client.get("/usage/export", {"detail": "requests"})
    assert streamed(exported).count("\r\n") == 2


def test_usage_of_ones_own_tenant_only() -> None:
    tenant = factories.tenant("acme")
    usage_record([event(timezone.now(), tenant="other", caller="gk-foreign1")])
    client = browser(Role.BILLING, tenant)
    assert "Nothing was used" in page(client, "/usage")
    assert client.get("/usage", {"tenant": "other"}).status_code == 403
    assert browser(Role.VIEWER).get("/usage").status_code == 403
    assert client.get("/usage/prices").status_code == 403


def test_prices_and_holidays() -> None:
    client = browser(Role.BILLING)
    assert "Every other model" in page(client, "/usage/prices")
    rates = {"hit": "0.003", "miss": "0.15", "output": "0.6", "peak_hit": "1", "peak_miss": "1", "peak_output": "x"}
    new = {"model": "tiny", "valid_from": (timezone.now() + timedelta(days=1)).isoformat(), **rates}
    refused = client.post("/usage/prices/new", new)
    assert refused.status_code == 422
    assert "Give dollars" in refused.content.decode()
    assert client.post("/usage/prices/new", {**new, "peak_output": "1.2"}).status_code == 302
    assert PriceEntry.objects.get(model_name="tiny").hit == 3000
    day = timezone.now().date() + timedelta(days=9)
    assert client.post("/usage/prices/holidays/new", {"day": day, "name": "Feast"}).status_code == 302
    feast = Holiday.objects.get(name="Feast")
    assert client.post(f"/usage/prices/holidays/{feast.pk}/remove").status_code == 302
    assert not Holiday.objects.filter(pk=feast.pk).exists()


def test_a_tenant_from_the_first_to_the_last() -> None:
    client = browser(Role.ADMINISTRATOR)
    made = {"slug": "acme", "name": "Acme", "requests_per_minute": "60", "budget_usd": "12.5"}
    assert client.post("/keys/tenants/new", made).status_code == 302
    tenant = Tenant.objects.get(slug="acme")
    assert tenant.limits == Limits(requests_per_minute=60, budget_micro_usd=12_500_000)
    assert "12.5" in page(client, "/keys/tenants/acme/limits")
    assert client.post("/keys/tenants/acme/limits", {"budget_usd": "-1"}).status_code == 422
    assert client.post("/keys/tenants/acme/limits", {"tokens_per_minute": "9"}).status_code == 302
    assert "$" not in page(client, "/keys/tenants").split("acme")[1].split("</tr>")[0]
    assert client.post("/keys/tenants/acme/delete", {"confirm": "wrong"}).status_code == 422
    assert client.post("/keys/tenants/acme/delete", {"confirm": "acme"}).status_code == 302
    assert "acme" not in page(client, "/keys/tenants")
    assert browser(Role.OPERATOR).get("/keys/tenants").status_code == 403


def test_a_key_is_limited_and_rotated() -> None:
    key, _ = services.key_create(actor=SYSTEM, tenant=factories.tenant("acme"), name="ci", scopes=[Scope.INFERENCE])
    client = browser(Role.ADMINISTRATOR)
    assert client.post(f"/keys/{key.pk}/limits", {"concurrent_requests": "2"}).status_code == 302
    shown = client.post(f"/keys/{key.pk}/rotate", {"overlap_hours": "1"})
    new = APIKey.objects.exclude(pk=key.pk).get()
    assert f"gk-{new.prefix}-" in shown.content.decode()
    assert new.limits == Limits(concurrent_requests=2)
    assert client.post(f"/keys/{key.pk}/rotate", {"overlap_hours": "-1"}).status_code == 422
    assert browser(Role.VIEWER).get(f"/keys/{key.pk}/rotate").status_code == 403
