"""The caching API under `/api/`, as a client with a key and a browser see it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from controlplane.accounts.models import Tenant
from controlplane.accounts.permissions import SYSTEM, Role, Scope
from controlplane.accounts.services import key_create
from controlplane.audit.models import AuditEvent
from controlplane.caching import selectors
from controlplane.caching.documents import to_body
from controlplane.caching.models import WarmJob
from tests.controlplane.accounts import factories as accounts
from tests.controlplane.caching import factories
from tests.controlplane.fleet import factories as fleet

pytestmark = [pytest.mark.integration, pytest.mark.django_db, pytest.mark.usefixtures("empty_store")]

JSON = "application/json"


@pytest.fixture
def tenant() -> Tenant:
    return accounts.tenant("bistro")


@pytest.fixture
def client(client: Client) -> Client:
    client.force_login(accounts.user(Role.CACHE_ADMINISTRATOR))
    return client


def policy(**changes: Any) -> dict[str, Any]:
    body = to_body(selectors.current_policy())
    del body["version"]
    return body | changes


def with_chat_life(seconds: float) -> dict[str, Any]:
    body = policy()
    body["classes"] = [row | {"ttl_s": seconds} if row["name"] == "chat" else row for row in body["classes"]]
    return body


def test_a_key_with_the_scope_reads_previews_saves_and_rolls_back(tenant: Tenant) -> None:
    client = Client()
    _, raw = key_create(actor=SYSTEM, tenant=tenant, name="ops", scopes=[Scope.MANAGEMENT])
    headers = {"authorization": f"Bearer {raw}"}
    with factories.worker_store() as store:
        factories.fill(store)
    assert client.get("/api/retention", headers=headers).json()["version"] == 1

    draft = {"policy": with_chat_life(0.0)}
    preview = client.post("/api/retention/preview", draft, content_type=JSON, headers=headers).json()
    assert preview["problems"] == []
    assert preview["effect"]["blocks"] == 4
    assert preview["effect"]["forecast"]["chat"]["prompt_blocks"] == 5
    assert [change["field"] for change in preview["changes"]] == ["class chat life_s"]

    body = draft | {"expected_version": 1, "reason": "audit week"}
    saved = client.put("/api/retention", body, content_type=JSON, headers=headers)
    assert (saved.status_code, saved.json()["version"]) == (200, 2)
    again = client.put("/api/retention", body, content_type=JSON, headers=headers)
    assert (again.status_code, again.json()["version"]) == (409, 2)

    back = {"version": 1, "expected_version": 2, "reason": "over"}
    assert client.post("/api/retention/rollback", back, content_type=JSON, headers=headers).json()["restores"] == 1
    versions = client.get("/api/retention/versions", headers=headers).json()["results"]
    assert [row["version"] for row in versions] == [3, 2, 1]
    assert versions[1]["changes"] == [{"field": "class chat life_s", "before": 604800.0, "after": 0.0}]
    event = AuditEvent.objects.get(action="retention.save")
    assert (event.actor_kind, event.reason) == ("key", "audit week")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"classes": [{"name": "chat", "ttl_s": -1}]}, "between 0 seconds and ten years"),
        ({"classes": [{"name": "chat", "ttl_s": "long"}]}, "ttl_s"),
        ({"surprise": 1}, "surprise"),
        ({"total_bytes": 2**62}, "more than the disk"),
    ],
)
def test_bad_input_is_refused_with_the_reason(client: Client, changes: dict[str, Any], problem: str) -> None:
    body = {"policy": policy(**changes), "expected_version": 1, "reason": "x"}
    answer = client.put("/api/retention", body, content_type=JSON)
    assert answer.status_code == 400
    assert problem in " ".join(answer.json()["problems"])


def test_rights(tenant: Tenant) -> None:
    body = {"policy": with_chat_life(1.0), "expected_version": 1, "reason": "x"}
    found = {}
    for role in Role:
        browser = Client()
        browser.force_login(accounts.user(role))
        reads = browser.get("/api/store").status_code
        found[role.value] = (reads, browser.put("/api/retention", body, content_type=JSON).status_code)
    assert found == {
        "viewer": (200, 403),
        "operator": (200, 403),
        "cache_administrator": (200, 200),
        "billing": (200, 403),
        "administrator": (200, 409),
    }
    assert Client().get("/api/store").status_code in (401, 403)


def test_the_store_is_described_and_purged(client: Client, tenant: Tenant) -> None:
    with factories.worker_store() as store:
        factories.fill(store, tenant="bistro", blocks=3)
    shown = client.get("/api/store").json()
    assert shown["contents"]["tenants"][0]["name"] == "bistro"
    assert [split["label"] for split in shown["tokens"]] == ["Last hour", "Last 24 hours"]
    body = {"kind": "tenant", "name": "bistro", "reason": "they left"}
    assert client.post("/api/store/purge", body, content_type=JSON).json()["extents"] == 1
    assert client.get("/api/store").json()["contents"]["total"]["blocks"] == 0
    assert client.post("/api/store/purge", body | {"name": "x"}, content_type=JSON).status_code == 400


def test_pins(client: Client) -> None:
    body = {"name": "faq", "tip": "ab" * 32, "reason": "asked all day"}
    assert client.post("/api/retention/pins", body, content_type=JSON).status_code == 201
    assert selectors.current_policy().pins[0].name == "faq"
    both = body | {"messages": [{"role": "user", "content": "x"}]}
    assert client.post("/api/retention/pins", both, content_type=JSON).status_code == 400
    assert client.delete("/api/retention/pins/faq").status_code == 400
    assert client.delete("/api/retention/pins/faq?reason=gone").status_code == 200
    assert client.delete("/api/retention/pins/faq?reason=gone").status_code == 404


def test_warming_is_queued_followed_and_cancelled(client: Client, tenant: Tenant) -> None:
    fleet.deployment("chat")
    body = {"model": "chat", "tenant": "bistro", "retention_class": "chat", "prompts": "one\ntwo\n"}
    made = client.post("/api/store/warming", body, content_type=JSON)
    assert (made.status_code, made.json()["total"]) == (202, 2)
    job = made.json()["id"]
    assert client.get(f"/api/store/warming/{job}").json()["state"] == "queued"
    assert client.delete(f"/api/store/warming/{job}").json()["state"] == "cancelled"
    assert WarmJob.objects.get(pk=job).prompts == []
    for wrong in ({"prompts": '{"x": 1}'}, {"tenant": "nobody"}, {"retention_class": "no"}, {"model": "no"}):
        assert client.post("/api/store/warming", body | wrong, content_type=JSON).status_code == 400


def test_the_api_describes_itself(client: Client) -> None:
    client.raise_request_exception = True
    answer = client.get("/api/schema", headers={"accept": JSON})
    assert answer.status_code == 200
    assert answer.data["openapi"].startswith("3.")
    assert {"/api/retention", "/api/store/purge", "/api/deployments"} <= set(answer.data["paths"])
    save = answer.data["components"]["schemas"]["Save"]
    assert set(save["required"]) == {"policy", "expected_version", "reason"}
