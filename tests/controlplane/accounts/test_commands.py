from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command

from controlplane.accounts import selectors, services
from controlplane.accounts.models import APIKey
from controlplane.accounts.permissions import SYSTEM, Action, Scope, can, principal_of_user
from controlplane.commands import CommandFailure
from tests.controlplane.accounts import factories

pytestmark = [pytest.mark.integration, pytest.mark.django_db]


def run(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def test_bootstrap_prints_secrets_once() -> None:
    first = json.loads(run("accounts", "bootstrap"))
    assert set(first) == {"admin_user", "admin_password", "api_key"}
    assert json.loads(run("accounts", "bootstrap")) == {}


def test_reset_password() -> None:
    user = factories.user()
    password = run("accounts", "reset-password", user.username).split()[-1]
    user.refresh_from_db()
    assert user.check_password(password)
    with pytest.raises(CommandFailure, match=user.username):
        run("accounts", "reset-password", "nobody")


def test_create_user_with_a_role() -> None:
    run("accounts", "create-user", "ada", "--role", "operator")
    user = selectors.user_by_name("ada")
    assert user is not None
    assert can(principal_of_user(user), Action.FLEET_OPERATE)
    with pytest.raises(CommandFailure, match="ada cannot be created"):
        run("accounts", "create-user", "ada")
    with pytest.raises(CommandFailure, match="no tenant"):
        run("accounts", "create-user", "bob", "--tenant", "nowhere")


def test_keys_create_list_revoke() -> None:
    factories.tenant("default")
    raw = run("keys", "create", "ci", "--scope", "inference", "--days", "7").strip()
    key = APIKey.objects.get()
    assert key.expires_at is not None
    listed = run("keys", "list")
    assert f"gk-{key.prefix}" in listed
    assert raw not in listed
    run("keys", "revoke", f"gk-{key.prefix}")
    assert "revoked" in run("keys", "list")


def test_keys_mistakes_are_explained() -> None:
    services.tenant_create(actor=SYSTEM, slug="acme", name="Acme")
    with pytest.raises(CommandFailure, match="acme"):
        run("keys", "create", "ci", "--tenant", "nowhere")
    with pytest.raises(CommandFailure, match="no key was made"):
        run("keys", "create", "ci", "--tenant", "acme", "--days", "-1")
    _, raw = services.key_create(actor=SYSTEM, tenant=factories.tenant(), name="x", scopes=[Scope.INFERENCE])
    with pytest.raises(CommandFailure) as refused:
        run("keys", "revoke", raw)
    assert raw not in str(refused.value)


def test_limits_of_tenants_and_keys() -> None:
    run("tenants", "create", "acme", "--requests-per-minute", "60", "--budget-usd", "12.5")
    assert "60 requests per minute" in run("tenants", "list")
    assert "12.50 $/month" in run("tenants", "limits", "acme")
    assert run("tenants", "limits", "acme", "--budget-usd", "none").strip() == "acme: 60 requests per minute"
    run("keys", "create", "ci", "--tenant", "acme", "--concurrent", "2")
    key = APIKey.objects.get()
    assert key.limits.concurrent_requests == 2
    assert "1,000 prompt" in run("keys", "limits", f"gk-{key.prefix}", "--tokens-per-minute", "1000")
    with pytest.raises(CommandFailure, match="number"):
        run("tenants", "limits", "acme", "--budget-usd", "0.00000001")
    new = run("keys", "rotate", f"gk-{key.prefix}", "--overlap-hours", "1").strip()
    assert new.startswith("gk-")
    with pytest.raises(CommandFailure, match="--yes"):
        run("tenants", "delete", "acme")
    run("tenants", "delete", "acme", "--yes")
    assert not APIKey.objects.exists()
