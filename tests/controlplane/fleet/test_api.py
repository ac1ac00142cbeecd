from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from controlplane.accounts import keycache
from controlplane.accounts import services as accounts
from controlplane.accounts.permissions import SYSTEM, Role, Scope
from controlplane.audit.models import AuditEvent
from controlplane.fleet import services
from tests.controlplane.accounts import factories as people
from tests.controlplane.fleet import factories

pytestmark = [pytest.mark.integration, pytest.mark.django_db]

NEW = {"name": "chat", "model": factories.MODEL, "prefill_replicas": 1, "decode_replicas": 1}


@pytest.fixture(autouse=True)
def _deaf_key_cache(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A cache of the test's own that does not listen: its thread would outlive the test's transaction."""
    cache = keycache.KeyCache()
    monkeypatch.setattr(cache, "start", lambda: None)
    monkeypatch.setattr(keycache, "key_cache", lambda: cache)


def signed_in(role: Role) -> Client:
    client = Client()
    client.force_login(people.user(role))
    return client


def with_key(*scopes: Scope) -> dict[str, str]:
    _, raw = accounts.key_create(actor=SYSTEM, tenant=people.tenant(), name="x", scopes=scopes)
    return {"authorization": f"Bearer {raw}"}


def test_reading_as_a_viewer() -> None:
    factories.node("n1")
    factories.deployment("chat")
    services.reconcile()
    client = signed_in(Role.VIEWER)
    deployment = client.get("/api/deployments").json()["results"][0]
    assert deployment["name"] == "chat"
    assert [pool["role"] for pool in deployment["pools"]] == ["both", "decode", "prefill"]
    assert client.get("/api/deployments/chat").json() == deployment
    workers = client.get("/api/workers").json()["results"]
    assert [worker["name"] for worker in workers] == ["chat-decode-0", "chat-prefill-0"]
    assert workers[0]["reason"].startswith("waiting for the agent")
    assert client.get("/api/nodes").json()["results"][0]["workers"] == ["chat-decode-0", "chat-prefill-0"]
    assert client.get("/api/deployments/other").status_code == 404


def test_who_may_not() -> None:
    assert Client().get("/api/workers").status_code in (401, 403)
    assert signed_in(Role.VIEWER).post("/api/deployments", NEW, content_type="application/json").status_code == 403
    assert Client().get("/api/workers", headers=with_key(Scope.INFERENCE)).status_code == 403
    assert Client().get("/api/workers", headers={"authorization": "Bearer gk-nonsense"}).status_code == 401
    own = people.user(Role.ADMINISTRATOR, tenant=people.tenant())
    client = Client()
    client.force_login(own)
    assert client.get("/api/workers").status_code == 403


def test_writing_with_a_management_key() -> None:
    factories.model()
    headers = with_key(Scope.MANAGEMENT)
    client = Client()
    made = client.post("/api/deployments", NEW, content_type="application/json", headers=headers)
    assert made.status_code == 201
    assert made.json()["model"] == factories.MODEL
    scaled = client.post(
        "/api/deployments/chat/scale",
        {"role": "decode", "replicas": 3, "reason": "load"},
        content_type="application/json",
        headers=headers,
    )
    assert scaled.status_code == 200
    event = AuditEvent.objects.get(action="deployment.scale")
    assert event.actor_kind == "key"
    assert event.request_id == scaled["x-request-id"]
    assert client.delete("/api/deployments/chat", headers=headers).status_code == 202


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"name": "two words"}, 400),
        ({"engine": {"surprise": 1}}, 400),
        ({"engine": {"pool_blocks": "many"}}, 400),
        ({"prefill_replicas": 0}, 409),
        ({"model": "absent"}, 409),
    ],
)
def test_mistakes_are_answered(changes: dict[str, Any], status: int) -> None:
    factories.model()
    client = signed_in(Role.OPERATOR)
    assert client.post("/api/deployments", NEW | changes, content_type="application/json").status_code == status


def test_a_name_that_is_taken() -> None:
    factories.deployment("chat")
    client = signed_in(Role.OPERATOR)
    assert client.post("/api/deployments", NEW, content_type="application/json").status_code == 400
    body = {"role": "decode", "replicas": 1}
    assert client.post("/api/deployments/no/scale", body, content_type="application/json").status_code == 404
    bad = {"role": "cook", "replicas": 1}
    assert client.post("/api/deployments/chat/scale", bad, content_type="application/json").status_code == 400
