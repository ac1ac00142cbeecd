"""`manage.py store` and `manage.py retention` over a store with something in it."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

from controlplane.accounts.models import Tenant
from controlplane.audit.models import AuditEvent
from controlplane.caching import selectors
from controlplane.commands import CommandFailure
from controlplane.config import home
from tests.controlplane.accounts import factories as accounts
from tests.controlplane.caching import factories
from tests.workers.kvstore.factories import served

pytestmark = [pytest.mark.integration, pytest.mark.django_db, pytest.mark.usefixtures("empty_store")]


@pytest.fixture
def tenant() -> Tenant:
    return accounts.tenant("bistro")


def run(noun: str, *arguments: str) -> str:
    out = StringIO()
    call_command(noun, *arguments, stdout=out)
    return out.getvalue()


def test_stats_name_classes_tenants_and_what_went(tenant: Tenant) -> None:
    with factories.worker_store() as store:
        factories.fill(store, tenant="bistro", retention_class="agent", blocks=3)
        factories.fill(store, tenant="bistro", blocks=2)
    contents = json.loads(run("store", "stats", "--json"))["contents"]
    assert contents["total"]["blocks"] == 5
    assert [(owner["name"], owner["size"]["blocks"]) for owner in contents["tenants"]] == [("bistro", 5)]
    assert {row["name"]: row["extents"] for row in contents["classes"]} == {"agent": 1, "chat": 1}
    text = run("store", "stats")
    assert "5 blocks" in text
    assert "bistro" in text


def test_stats_of_an_empty_store() -> None:
    assert "0 blocks" in run("store", "stats")


def test_verify_finds_bit_rot_and_orphans_and_repairs() -> None:
    with factories.worker_store() as store:
        rotten = factories.fill(store, start=4_000)
        sound = factories.fill(store, start=900_000)
    assert "everything is as it should be" in run("store", "verify")
    with factories.worker_store() as store:
        extent = store.find(rotten).runs[0].extent
        path = store.root.where(extent)
        data = bytearray(path.read_bytes())
        data[-1] ^= 0xFF
        path.chmod(0o600)
        path.write_bytes(data)
    with pytest.raises(CommandFailure, match="1 extents are not"):
        run("store", "verify")
    assert "repaired: 1" in run("store", "verify", "--repair")
    with factories.worker_store() as store:
        assert served(store, rotten) == 0
        assert served(store, sound) == 4


def test_rebuild_fills_an_index_that_was_emptied(empty_store: str) -> None:
    import redis

    with factories.worker_store() as store:
        chain = factories.fill(store)
    with redis.Redis.from_url(empty_store) as client:
        client.flushall()
    run("store", "rebuild")
    with factories.worker_store() as store:
        assert served(store, chain) == len(chain)


def test_purge_takes_one_tenant_and_leaves_the_other(tenant: Tenant) -> None:
    accounts.tenant("tavern")
    with factories.worker_store() as store:
        gone = factories.fill(store, tenant="bistro")
        stays = factories.fill(store, tenant="tavern")
        assert "1 extents removed" in run("store", "purge", "--tenant", "bistro", "--yes")
        assert (served(store, gone), served(store, stays)) == (0, 4)
    event = AuditEvent.objects.get(action="store.purge")
    assert (event.target, event.tenant) == ("tenant:bistro", "bistro")


def test_purge_by_class_and_by_model(tenant: Tenant) -> None:
    with factories.worker_store() as store:
        agent = factories.fill(store, retention_class="agent")
        chat = factories.fill(store)
        run("store", "purge", "--class", "agent", "--yes")
        assert (served(store, agent), served(store, chat)) == (0, 4)
        run("store", "purge", "--model", factories.IDENTITY.fingerprint()[:12], "--yes")
        assert served(store, chat) == 0


@pytest.mark.parametrize(
    ("scope", "explanation"),
    [(("--tenant", "nobody"), "no tenant"), (("--model", "m"), "no model"), (("--class", "c"), "no retention class")],
)
def test_a_purge_of_what_is_not_there_is_explained(scope: tuple[str, str], explanation: str) -> None:
    with pytest.raises(CommandFailure, match=explanation):
        run("store", "purge", *scope, "--yes")
    assert not AuditEvent.objects.filter(action="store.purge").exists()


def test_a_shorter_life_is_previewed_set_swept_and_rolled_back() -> None:
    with factories.worker_store() as store:
        factories.fill(store)
    assert "goes at the next sweep: 4 blocks" in run("retention", "preview", "chat", "--life", "0s")
    assert selectors.current_policy().version == 1
    run("retention", "set", "chat", "--life", "0s", "--budget", "1MiB", "--reason", "tonight only")
    assert selectors.current_policy().find("chat").byte_budget == 2**20
    assert "4 blocks expired" in run("store", "sweep")
    assert "tonight only" in run("retention", "history")
    run("retention", "rollback", "1")
    assert selectors.current_policy().find("chat").ttl_s == 168 * 3600


def test_classes_are_made_and_removed_and_a_whole_policy_goes_out_and_in(tmp_path: Path) -> None:
    run("retention", "set", "batch", "--new", "--life", "12h", "--sidecars", "none", "--priority", "-1")
    shown = run("retention", "show", "--json")
    run("retention", "set", "batch", "--delete")
    assert {item.name for item in selectors.current_policy().classes} == {"agent", "chat"}
    path = tmp_path / "policy.json"
    path.write_text(shown)
    run("retention", "set", "--file", str(path))
    assert selectors.current_policy().find("batch").ttl_s == 12 * 3600
    assert "batch" in run("retention", "show")


@pytest.mark.parametrize(
    ("arguments", "explanation"),
    [
        (("chat", "--life", "soon"), "a duration is"),
        (("chat", "--life=-5h"), "between 0 seconds and ten years"),
        (("chat", "--budget", "900PiB"), "more than the store may hold"),
        (("nobody", "--life", "5h"), "no class nobody"),
        (("chat", "--new", "--life", "5h"), "already"),
        (("chat", "--delete"), "fallback"),
        (("chat", "--life", "5h", "--expect", "9"), "at version 1"),
    ],
)
def test_mistakes_are_explained(arguments: tuple[str, ...], explanation: str) -> None:
    with pytest.raises(CommandFailure, match=explanation):
        run("retention", "set", *arguments)


def test_pins_by_hash() -> None:
    run("retention", "pin", "faq", "--tip", "cd" * 32)
    assert "pin faq" in run("retention", "show")
    run("retention", "unpin", "faq")
    with pytest.raises(CommandFailure, match="no prefix is pinned"):
        run("retention", "unpin", "faq")


def test_a_folder_that_is_not_there_is_said(empty_store: str) -> None:
    with factories.worker_store() as store:
        factories.fill(store)
    root = home().kvstore
    root.rename(root.with_name("unmounted"))
    try:
        with pytest.raises(CommandFailure, match="root_missing"):
            run("store", "sweep")
    finally:
        root.with_name("unmounted").rename(root)
