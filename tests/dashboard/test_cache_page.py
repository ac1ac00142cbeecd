"""The cache page: what it shows of a store with something in it, of an empty one, and of one in trouble."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone

from controlplane.accounts.permissions import SYSTEM, Role
from controlplane.caching import overview, policies, selectors, services
from controlplane.caching.models import WarmJob
from controlplane.caching.overview import Split
from controlplane.telemetry.models import FINE_S
from controlplane.telemetry.services import period_start, rollup_store
from controlplane.telemetry.totals import Totals
from tests.controlplane.accounts import factories as accounts
from tests.controlplane.caching import factories
from tests.controlplane.caching.conftest import empty_store  # noqa: F401 - a fixture
from tests.controlplane.fleet import factories as fleet

pytestmark = [pytest.mark.integration, pytest.mark.django_db, pytest.mark.usefixtures("empty_store")]

PARTIAL = {"HX-Request": "true"}


@pytest.fixture(autouse=True)
def fresh_splits() -> Iterator[None]:
    overview.recent_splits.forget()
    yield
    overview.recent_splits.forget()


@pytest.fixture
def administrator(client: Client) -> Client:
    client.force_login(accounts.user(Role.CACHE_ADMINISTRATOR))
    return client


def text(client: Client, path: str, **headers: str) -> str:
    answer = client.get(path, headers=headers)
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


def test_an_empty_store_says_how_it_fills(administrator: Client) -> None:
    page = text(administrator, "/cache")
    assert "Nothing is stored yet" in page
    assert "no prompt in this time" in page
    assert "Nothing has gone yet" in page


def test_use_by_class_and_tenant_ages_and_what_went(administrator: Client) -> None:
    accounts.tenant("bistro")
    with factories.worker_store() as store:
        factories.fill(store, tenant="bistro", retention_class="agent", blocks=3)
        factories.fill(store, tenant="bistro", blocks=2)
        factories.save(factories.edited("agent", ttl_s=0.0))
        services.publish_current()
        store.sweep()
    page = text(administrator, "/cache", **PARTIAL)
    assert "bistro" in page
    assert "Expired: not used for the life of its class" in page
    assert re.search(r"≤ 1 min 1\b", page), "one extent was used within the minute"


def test_the_split_adds_up_and_explains_what_is_shorter_than_a_block(administrator: Client) -> None:
    at = period_start(timezone.now() - timedelta(minutes=5), FINE_S)
    totals = Totals(seconds=10, hit=700, miss=300, store_hit=200, recomputed=100, short=50)
    rollup_store(resolution=FINE_S, at=at, writer=1, totals=totals)
    hour = overview.splits()[0]
    assert (hour.pool, hour.store, hour.recomputed, hour.miss, hour.short) == (400, 200, 100, 300, 50)
    assert hour.total == 1000
    assert hour.hit_rate == 0.7
    assert sum(segment.share for segment in hour.segments()) == pytest.approx(1)
    page = text(administrator, "/cache", **PARTIAL)
    assert "70.0 %" in page
    assert "50 of the missed tokens are of prompts shorter than one block" in page
    assert Split("empty").segments() == []


def test_troubles_say_what_happens_and_what_helps(administrator: Client) -> None:
    now = timezone.now()
    services.alerts_observe(observed={"control": {"disk_full": "no space left"}, "w-0": {"slow": "3 s"}}, now=now)
    page = text(administrator, "/cache", **PARTIAL)
    assert "The disk is full" in page
    assert "no space left" in page
    assert "The file system is slow" in page
    services.alerts_observe(observed={"control": {}}, now=now)
    assert selectors.open_alerts().count() == 0
    assert "Troubles that passed" in text(administrator, "/cache", **PARTIAL)


@pytest.mark.parametrize(("role", "manages"), [(Role.VIEWER, False), (Role.ADMINISTRATOR, True)])
def test_only_those_who_may_are_offered_changes(client: Client, role: Role, manages: bool) -> None:
    client.force_login(accounts.user(role))
    page = client.get("/cache").content.decode()
    assert ("/cache/policy" in page, "/cache/purge" in page) == (manages, manages)
    status = 200 if manages else 403
    paths = ("/cache/policy", "/cache/purge", "/cache/warming", "/cache/history/1/restore")
    assert [client.get(path).status_code for path in paths] == [status] * 4
    assert client.get("/cache/history").status_code == 200


def test_a_purge_is_confirmed_by_the_name(administrator: Client) -> None:
    accounts.tenant("bistro")
    with factories.worker_store() as store:
        factories.fill(store, tenant="bistro")
    form = {"scope": "tenant:bistro", "confirmation": "bistr", "reason": "they left"}
    refused = administrator.post("/cache/purge", form, headers=PARTIAL)
    assert refused.status_code == 422
    assert "Type bistro to confirm" in refused.content.decode()
    done = administrator.post("/cache/purge", form | {"confirmation": "bistro"}, headers=PARTIAL)
    assert "1 extents were removed" in done.content.decode()


def test_a_file_is_warmed_and_its_job_shown(administrator: Client) -> None:
    fleet.deployment("chat")
    accounts.tenant("bistro")
    form = {"model": "chat", "tenant": "bistro", "class": "chat", "pin": ""}
    bad = administrator.post("/cache/warming", form | {"file": SimpleUploadedFile("p.jsonl", b'{"x": 1}')})
    assert bad.status_code == 422
    assert "line 1" in bad.content.decode()
    assert (
        administrator.post("/cache/warming", form | {"file": SimpleUploadedFile("p.txt", b"a\nb")}).status_code == 302
    )
    job = WarmJob.objects.get()
    assert job.prompts == [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]
    assert "0 of 2" in text(administrator, "/cache/warming", **PARTIAL)
    administrator.post(f"/cache/warming/{job.pk}/cancel")
    assert "Cancelled" in text(administrator, "/cache/warming", **PARTIAL)


def test_pins_are_listed_and_removed(administrator: Client) -> None:
    services.pins_add(actor=SYSTEM, pins={"faq": "ab" * 32}, reason="asked all day")
    assert "faq" in text(administrator, "/cache/warming")
    assert administrator.post("/cache/pins/faq/remove", {"reason": ""}, headers=PARTIAL).status_code == 422
    assert administrator.post("/cache/pins/faq/remove", {"reason": "gone"}, headers=PARTIAL).status_code == 204
    assert selectors.current_policy().pins == ()
    unknown = {"name": "x", "model": "nothing", "tenant": "default", "system": "You are.", "reason": "y"}
    refused = administrator.post("/cache/pins", unknown)
    assert refused.status_code == 422
    assert "nothing is deployed as nothing" in refused.content.decode()


def test_a_pin_with_a_slash_of_an_older_release_is_listed_and_removed(
    administrator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(policies, "pin_name_problem", lambda name: "")
        services.pins_add(actor=SYSTEM, pins={"bistro/faq": "ab" * 32, "bistro/menu": "cd" * 32}, reason="x")
    assert "bistro/faq" in administrator.get("/cache/warming").content.decode()
    assert administrator.post("/cache/pins/bistro/faq/remove", {"reason": "gone"}, headers=PARTIAL).status_code == 204
    assert [pin.name for pin in selectors.current_policy().pins] == ["bistro/menu"]
