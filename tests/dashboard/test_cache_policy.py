"""Editing the retention policy in the browser: rows, preview, save, history, way back."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import msgspec
import pytest
from django.http import HttpResponse
from django.test import Client

from controlplane.accounts.permissions import SYSTEM, Role
from controlplane.caching import selectors, services
from dashboard.policy_form import PolicyForm
from tests.controlplane.accounts import factories as accounts
from tests.controlplane.caching import factories
from tests.controlplane.caching.conftest import empty_store  # noqa: F401 - a fixture

pytestmark = [pytest.mark.integration, pytest.mark.django_db, pytest.mark.usefixtures("empty_store")]

PARTIAL = {"HX-Request": "true"}
FIELD = re.compile(r'<input[^>]* name="([^"]+)"[^>]*?(?: value="([^"]*)")?[^>]*>')
CHOICE = re.compile(r'<select[^>]* name="([^"]+)"[^>]*>(.*?)</select>', re.S)
CHOSEN = re.compile(r'<option(?: value="([^"]*)")? selected>([^<]*)</option>|<option(?: value="([^"]*)")?>([^<]*)')


@pytest.fixture
def administrator(client: Client) -> Client:
    client.force_login(accounts.user(Role.CACHE_ADMINISTRATOR))
    return client


def fields(answer: Any) -> dict[str, str]:
    """What a browser would send back of the form."""
    page = answer.content.decode()
    found = {name: unescape(re.search(r'value="([^"]*)"', tag)[1]) if 'value="' in tag else "" for tag, name in (
        (match[0], match[1]) for match in re.finditer(r'<input[^>]* name="([^"]+)"[^>]*>', page)
    )}  # fmt: skip
    for name, options in CHOICE.findall(page):
        chosen = re.search(r"<option([^>]*) selected>([^<]*)", options) or re.search(r"<option([^>]*)>([^<]*)", options)
        assert chosen is not None
        value = re.search(r'value="([^"]*)"', chosen[1])
        found[name] = unescape(value[1] if value else chosen[2])
    return found


def send(client: Client, form: dict[str, str], action: str) -> HttpResponse:
    return client.post("/cache/policy", form | {"action": action}, headers=PARTIAL)


def test_a_life_is_shortened_after_its_preview(administrator: Client) -> None:
    with factories.worker_store() as store:
        factories.fill(store)
    form = fields(administrator.get("/cache/policy"))
    assert (form["class-0-name"], form["class-0-life"], form["class-1-life"]) == ("agent", "72 h", "7 d")
    form["class-1-life"] = "0 s"
    preview = send(administrator, form, "preview")
    page = preview.content.decode()
    assert "4 blocks" in page
    assert selectors.current_policy().version == 1, "a preview changes nothing"
    saved = send(administrator, fields(preview) | {"reason": "the disk fills"}, "save")
    assert (saved.status_code, saved["HX-Redirect"]) == (204, "/cache/history")
    assert selectors.current_policy().find("chat").ttl_s == 0
    history = administrator.get("/cache/history").content.decode()
    assert "the disk fills" in history
    assert "<del>7 d</del>" in history
    assert "<ins>0 s</ins>" in history


def test_what_was_not_previewed_is_not_saved(administrator: Client) -> None:
    form = fields(administrator.get("/cache/policy"))
    form["class-1-life"] = "1 h"
    previewed = fields(send(administrator, form, "preview")) | {"reason": "x", "class-1-life": "1 min"}
    answer = send(administrator, previewed, "save")
    assert answer.status_code == 422
    assert "Changed since the preview" in answer.content.decode()
    assert selectors.current_policy().version == 1


def test_somebody_elses_version_is_not_overwritten(administrator: Client) -> None:
    form = fields(administrator.get("/cache/policy"))
    form["class-1-life"] = "1 h"
    previewed = fields(send(administrator, form, "preview")) | {"reason": "x"}
    factories.save(factories.edited("agent", ttl_s=60.0))
    answer = send(administrator, previewed, "save")
    assert answer.status_code == 422
    assert "Somebody was faster" in answer.content.decode()
    assert selectors.current_policy().find("agent").ttl_s == 60


@pytest.mark.parametrize(
    ("changes", "explanation"),
    [
        ({"class-0-life": "soon"}, "a duration is"),
        ({"class-0-life": "-5 h"}, "between 0 seconds and ten years"),
        ({"class-0-life": "900000 d"}, "between 0 seconds and ten years"),
        ({"class-0-budget": "9000 PiB"}, "more than the store may hold"),
        ({"class-0-priority": "high"}, "is no whole number"),
        ({"total": "many"}, "a size is"),
        ({"watermark": "10"}, "between 0.5 and 1"),
        ({"rule-0-tools": ""}, "has no condition"),
    ],
)
def test_bad_input_is_explained(administrator: Client, changes: dict[str, str], explanation: str) -> None:
    form = fields(administrator.get("/cache/policy")) | changes
    answer = send(administrator, form, "preview")
    assert answer.status_code == 422
    assert explanation in unescape(answer.content.decode())
    assert "Save as version" not in answer.content.decode()


def test_classes_and_rules_come_and_go_without_a_script(administrator: Client) -> None:
    form = fields(administrator.get("/cache/policy"))
    added = fields(send(administrator, form, "add-class")) | {"class-2-name": "batch", "class-2-life": "12 h"}
    ruled = fields(send(administrator, added, "add-rule"))
    ruled |= {"rule-1-header": "x-kind", "rule-1-value": "nightly", "rule-1-class": "batch"}
    raised = fields(send(administrator, ruled, "raise-rule-1"))
    previewed = fields(send(administrator, raised, "preview")) | {"reason": "nightly runs"}
    assert send(administrator, previewed, "save").status_code == 204
    policy = selectors.current_policy()
    assert policy.find("batch").ttl_s == 12 * 3600
    assert [rule.retention_class for rule in policy.rules] == ["batch", "agent"]
    assert policy.rules[0].header == ("x-kind", "nightly")
    form = fields(administrator.get("/cache/policy"))
    dropped = fields(send(administrator, fields(send(administrator, form, "drop-rule-0")), "drop-class-2"))
    assert "class-2-name" not in dropped
    assert "rule-1-class" not in dropped


def test_an_old_version_comes_back_with_one_click(administrator: Client) -> None:
    factories.save(ttl_s=3600.0)
    dialog = administrator.get("/cache/history/1/restore", headers=PARTIAL)
    assert "<ins>7 d</ins>" in dialog.content.decode()
    form = fields(dialog)
    refused = administrator.post("/cache/history/1/restore", form | {"reason": ""}, headers=PARTIAL)
    assert refused.status_code == 422
    done = administrator.post("/cache/history/1/restore", form | {"reason": "too short"}, headers=PARTIAL)
    assert done.status_code == 204
    assert selectors.current_policy().find("chat").ttl_s == 7 * 86_400
    assert administrator.get("/cache/history/99/restore").status_code == 404


def test_what_nobody_touched_stays_as_it_is(administrator: Client) -> None:
    odd = factories.edited(ttl_s=1234567.25, byte_budget=1_500_000_001)
    odd = msgspec.structs.replace(odd, total_bytes=7_654_321_987, low_watermark=0.9123456)
    services.policy_save(actor=SYSTEM, draft=odd, expected_version=1, reason="x")
    form = PolicyForm.sent(fields(administrator.get("/cache/policy")))
    current = selectors.current_policy()
    assert form.policy(current) == current
