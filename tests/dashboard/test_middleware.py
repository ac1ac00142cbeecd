from __future__ import annotations

import pytest
from django.test import Client

from controlplane.accounts.permissions import Role
from dashboard.middleware import content_security_policy
from tests.controlplane.accounts import factories as accounts


def test_the_policy_lets_nothing_in_from_elsewhere() -> None:
    policy = dict(part.strip().split(" ", 1) for part in content_security_policy("galley.example").split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["font-src"] == "'self'"
    assert policy["connect-src"] == "'self' ws://galley.example wss://galley.example"
    assert "unsafe" not in str(policy)


@pytest.mark.integration
@pytest.mark.django_db
@pytest.mark.usefixtures("valkey_url")
def test_every_page_has_it_and_json_does_not(client: Client) -> None:
    client.force_login(accounts.user(Role.ADMINISTRATOR))
    pages = [client.get(path) for path in ("/", "/login", "/workers", "/playground", "/keys", "/audit", "/nowhere")]
    assert all("Content-Security-Policy" in page for page in pages)
    assert "Content-Security-Policy" not in client.get("/live/snapshot")


@pytest.mark.integration
@pytest.mark.django_db
@pytest.mark.usefixtures("valkey_url")
@pytest.mark.parametrize("path", ["/", "/workers", "/playground", "/keys", "/keys/new", "/audit"])
def test_pages_obey_their_own_policy(client: Client, path: str) -> None:
    accounts.tenant("default")
    client.force_login(accounts.user(Role.ADMINISTRATOR))
    page = client.get(path).content.decode()
    assert " style=" not in page
    assert " onclick=" not in page
    assert "<style" not in page
    assert "http://" not in page
    assert "https://" not in page
