from __future__ import annotations

import re

import pytest
from django.test import Client

from controlplane.accounts import keys, selectors, services
from controlplane.accounts.models import APIKey, Tenant
from controlplane.accounts.permissions import SYSTEM, Role
from tests.controlplane.accounts import factories as accounts

pytestmark = [pytest.mark.integration, pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]

RAW_KEY = re.compile(r"gk-[a-z0-9]{8}-[\w-]{43}")
PARTIAL = {"HX-Request": "true"}


@pytest.fixture
def tenant() -> Tenant:
    return accounts.tenant("bistro")


@pytest.fixture
def administrator(client: Client, tenant: Tenant) -> Client:
    client.force_login(accounts.user(Role.ADMINISTRATOR))
    return client


def make(tenant: Tenant, name: str = "nightly") -> APIKey:
    return services.key_create(actor=SYSTEM, tenant=tenant, name=name, scopes=["inference"])[0]


def test_a_new_key_is_shown_once_and_works(administrator: Client) -> None:
    form = {"name": "support", "tenant": "bistro", "scopes": ["inference", "models"], "lifetime": "30"}
    answer = administrator.post("/keys/new", form, headers=PARTIAL)
    [raw] = set(RAW_KEY.findall(answer.content.decode()))
    assert "no-store" in answer["Cache-Control"]
    digest = keys.digest(raw)
    assert digest is not None
    record = selectors.key_record(digest)
    assert record is not None
    assert record.usable
    assert record.expires_at is not None
    assert not RAW_KEY.search(administrator.get("/keys").content.decode())


def test_it_works_without_scripts_too(administrator: Client) -> None:
    page = administrator.post("/keys/new", {"name": "support", "tenant": "bistro", "scopes": ["inference"]})
    assert RAW_KEY.search(page.content.decode())
    assert "<html" in page.content.decode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "This field is required."),
        ({"scopes": []}, "This field is required."),
        ({"scopes": ["everything"]}, "Select a valid choice."),
        ({"tenant": "elsewhere"}, "Select a valid choice."),
    ],
    ids=["no name", "no scope", "unknown scope", "unknown tenant"],
)
def test_a_form_that_is_refused_says_where(administrator: Client, change: dict[str, object], message: str) -> None:
    form = {"name": "support", "tenant": "bistro", "scopes": ["inference"], **change}
    answer = administrator.post("/keys/new", form, headers=PARTIAL)
    assert answer.status_code == 422
    assert message in answer.content.decode()
    assert not APIKey.objects.exists()


def test_nobody_hands_out_more_than_he_has(client: Client, tenant: Tenant) -> None:
    client.force_login(accounts.user(Role.ADMINISTRATOR, tenant=tenant))
    form = {"name": "too much", "tenant": "bistro", "scopes": ["management"]}
    answer = client.post("/keys/new", form, headers=PARTIAL)
    assert answer.status_code == 422
    assert "cannot grant the scope management" in answer.content.decode()
    assert not APIKey.objects.exists()


def test_revoking_asks_first_and_is_audited_with_its_reason(administrator: Client, tenant: Tenant) -> None:
    key = make(tenant)
    question = administrator.get(f"/keys/{key.pk}/revoke", headers=PARTIAL).content.decode()
    assert f"gk-{key.prefix}" in question
    key.refresh_from_db()
    assert key.state == "active"
    answer = administrator.post(f"/keys/{key.pk}/revoke", {"reason": "leaked"}, headers=PARTIAL)
    assert (answer.status_code, answer["HX-Refresh"]) == (204, "true")
    key.refresh_from_db()
    assert key.state == "revoked"
    assert "leaked" in administrator.get("/audit?action=key.revoke").content.decode()


def test_keys_of_other_tenants_are_not_there(client: Client, tenant: Tenant) -> None:
    make(tenant, "ours")
    other = make(accounts.tenant("atlas"), "theirs")
    client.force_login(accounts.user(Role.ADMINISTRATOR, tenant=tenant))
    page = client.get("/keys").content.decode()
    assert "ours" in page
    assert "theirs" not in page
    assert client.post(f"/keys/{other.pk}/revoke").status_code == 404
    other.refresh_from_db()
    assert other.state == "active"


def test_who_may_only_look_finds_no_button(client: Client, tenant: Tenant) -> None:
    key = make(tenant)
    client.force_login(accounts.user(Role.BILLING))
    page = client.get("/keys").content.decode()
    assert key.prefix in page
    assert "New key" not in page
    assert f"/keys/{key.pk}/revoke" not in page
    assert client.post(f"/keys/{key.pk}/revoke").status_code == 403


def test_search_finds_by_name_prefix_and_tenant(administrator: Client, tenant: Tenant) -> None:
    key = make(tenant, "nightly evaluation")
    make(accounts.tenant("atlas"), "support")
    for query in ("evalu", f"gk-{key.prefix}", "bistro"):
        part = administrator.get("/keys", {"q": query}, headers=PARTIAL).content.decode()
        assert "nightly evaluation" in part
        assert "support" not in part
    assert "No key matches" in administrator.get("/keys", {"q": "zzz"}, headers=PARTIAL).content.decode()


def test_a_name_is_text_not_markup(administrator: Client, tenant: Tenant) -> None:
    make(tenant, "<img src=x>")
    assert "<img src=x>" not in administrator.get("/keys").content.decode()
