"""Which role opens which page: asked of the pages themselves."""

from __future__ import annotations

import pytest
from django.test import Client

from controlplane.accounts.permissions import Role
from tests.controlplane.accounts import factories as accounts

pytestmark = [pytest.mark.integration, pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]

PAGES = ("/", "/workers", "/playground", "/keys", "/keys/new", "/audit", "/live/snapshot")
OPEN = {
    None: set(),
    Role.VIEWER: {"/", "/workers", "/live/snapshot"},
    Role.OPERATOR: {"/", "/workers", "/playground", "/keys", "/live/snapshot"},
    Role.CACHE_ADMINISTRATOR: {"/", "/workers", "/playground", "/live/snapshot"},
    Role.BILLING: {"/", "/workers", "/keys", "/live/snapshot"},
    Role.ADMINISTRATOR: set(PAGES),
}


@pytest.fixture(autouse=True)
def _a_tenant() -> None:
    accounts.tenant("default")


@pytest.mark.parametrize("role", list(OPEN), ids=str)
def test_each_role_opens_its_pages_and_no_other(client: Client, role: Role | None) -> None:
    client.force_login(accounts.user(role))
    answers = {page: client.get(page).status_code for page in PAGES}
    assert {page for page, status in answers.items() if status == 200} == OPEN[role]
    assert {status for page, status in answers.items() if page not in OPEN[role]} <= {403}


@pytest.mark.parametrize("role", [Role.VIEWER, Role.ADMINISTRATOR])
def test_the_navigation_offers_what_opens(client: Client, role: Role) -> None:
    client.force_login(accounts.user(role))
    page = client.get("/workers").content.decode()
    offered = {path for path in ("/workers", "/playground", "/keys", "/audit") if f'href="{path}"' in page}
    assert offered == OPEN[role] & {"/workers", "/playground", "/keys", "/audit"}


def test_a_role_in_one_tenant_opens_that_tenant_alone(client: Client) -> None:
    tenant = accounts.tenant("bistro")
    client.force_login(accounts.user(Role.OPERATOR, tenant=tenant))
    assert client.get("/").status_code == 403
    assert client.get("/playground").status_code == 200
    assert client.get("/keys").status_code == 200


@pytest.mark.parametrize("page", PAGES)
def test_pages_ask_for_a_sign_in_and_come_back(client: Client, page: str) -> None:
    answer = client.get(page)
    assert answer.status_code == 302
    assert answer["Location"] == f"/login?next={page}"


def test_a_script_is_told_that_the_session_is_over(client: Client) -> None:
    assert client.get("/workers", headers={"HX-Request": "true"}).status_code == 401
    assert client.get("/live/snapshot", headers={"accept": "application/json"}).status_code == 401


def test_the_forbidden_page_names_the_permission(client: Client) -> None:
    client.force_login(accounts.user(Role.VIEWER))
    page = client.get("/audit").content.decode()
    assert "audit.view" in page
    assert 'href="/workers"' in page
