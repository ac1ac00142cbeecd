"""Versions of the retention policy: saved, refused, pinned, rolled back, published."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controlplane.accounts.permissions import PermissionRefused, Role
from controlplane.audit.models import AuditEvent
from controlplane.caching import selectors, services
from controlplane.caching.errors import PolicyConflict, PolicyRefused, UnknownPin, UnknownVersion
from controlplane.caching.models import PolicyVersion
from controlplane.caching.publication import Published, publish_current, published_version
from controlplane.caching.store import disk, index
from tests.controlplane.accounts import factories as accounts
from tests.controlplane.caching import factories
from workers.kvstore.policy import AssignmentRule, RetentionClass, RetentionPolicy
from workers.kvstore.policy_feed import PolicyFeed

pytestmark = [pytest.mark.integration, pytest.mark.django_db, pytest.mark.usefixtures("empty_store")]

TIP = "ab" * 32


def test_an_installation_starts_with_agents_for_three_days_and_chats_for_seven() -> None:
    policy = selectors.current_policy()
    assert {item.name: item.ttl_s / 3600 for item in policy.classes} == {"agent": 72, "chat": 168}
    assert policy.classify(key_id="", headers={}, tools=True) == "agent"
    assert policy.classify(key_id="", headers={}, tools=False) == "chat"


def test_a_change_says_who_why_before_and_after() -> None:
    actor = accounts.principal(Role.CACHE_ADMINISTRATOR)
    row = services.policy_save(
        actor=actor, draft=factories.edited(ttl_s=3600.0), expected_version=1, reason="  the disk is full "
    )
    assert (row.number, row.reason, row.created_by) == (2, "the disk is full", actor.label)
    event = AuditEvent.objects.get(action="retention.save")
    assert (event.actor_label, event.reason) == (actor.label, "the disk is full")
    assert event.before == {"version": 1, "class chat life_s": 168 * 3600}
    assert event.after == {"version": 2, "class chat life_s": 3600}


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR, Role.BILLING])
def test_others_may_not(role: Role) -> None:
    with pytest.raises(PermissionRefused):
        services.policy_save(
            actor=accounts.principal(role), draft=factories.edited(ttl_s=1.0), expected_version=1, reason="x"
        )
    assert PolicyVersion.objects.count() == 1


def test_two_people_at_once_do_not_undo_each_other() -> None:
    mine, theirs = factories.edited(ttl_s=3600.0), factories.edited("agent", ttl_s=60.0)
    factories.save(theirs)
    with pytest.raises(PolicyConflict) as refusal:
        services.policy_save(
            actor=accounts.principal(Role.ADMINISTRATOR), draft=mine, expected_version=1, reason="mine"
        )
    assert refusal.value.current == 2
    assert selectors.current_policy().find("agent").ttl_s == 60


def _with(**fields: Any) -> RetentionPolicy:
    return msgspec.structs.replace(selectors.current_policy(), **fields)


def _bad_policies() -> dict[str, RetentionPolicy]:
    room = disk()
    assert room is not None
    two = (RetentionClass(name="chat", ttl_s=1), RetentionClass(name="chat", ttl_s=2))
    return {
        "between 0 seconds and ten years": factories.edited(ttl_s=-1.0),
        "chat: a life is between": factories.edited(ttl_s=1e12),
        "a budget is not negative": factories.edited(byte_budget=-5),
        "its budget is more than the store may hold": factories.edited(byte_budget=room.total + 1),
        "is more than the disk's": _with(total_bytes=room.total + 1),
        "the total budget must be positive": _with(total_bytes=0),
        "the low watermark": _with(low_watermark=0.1),
        "two classes have the same name": _with(classes=two),
        "the fallback class": _with(fallback="nobody"),
        "unknown class": _with(rules=(AssignmentRule(retention_class="nobody", tools=True),)),
        "has no condition": _with(rules=(AssignmentRule(retention_class="chat"),)),
        "there is no API key 999": _with(rules=(AssignmentRule(retention_class="chat", key_id="999"),)),
        "no name of a header": _with(rules=(AssignmentRule(retention_class="chat", header=("a b", "c")),)),
        "nothing differs": selectors.current_policy(),
    }


def test_bad_policies_are_refused_with_the_reason() -> None:
    found = {}
    for reason, draft in _bad_policies().items():
        with pytest.raises(PolicyRefused) as refusal:
            factories.save(draft)
        found[reason] = reason in str(refusal.value)
    assert found == dict.fromkeys(found, True)
    assert PolicyVersion.objects.count() == 1


def test_every_reason_is_told_at_once() -> None:
    with pytest.raises(PolicyRefused) as refusal:
        factories.save(_with(fallback="nobody", low_watermark=0.1))
    assert len(refusal.value.problems) == 2


def test_a_reason_is_asked_for() -> None:
    with pytest.raises(PolicyRefused, match="say why"):
        factories.save(ttl_s=1.0, reason="  ")


def test_rolling_back_makes_a_new_version() -> None:
    factories.save(ttl_s=3600.0)
    row = services.policy_rollback(
        actor=accounts.principal(Role.CACHE_ADMINISTRATOR), number=1, expected_version=2, reason="too short"
    )
    assert (row.number, row.restores) == (3, 1)
    assert selectors.current_policy().find("chat").ttl_s == 168 * 3600
    assert [change.field for change in selectors.version_changes([row])[3]] == ["class chat life_s"]
    with pytest.raises(UnknownVersion):
        services.policy_rollback(
            actor=accounts.principal(Role.ADMINISTRATOR), number=77, expected_version=3, reason="x"
        )


def test_pins_are_added_moved_and_removed() -> None:
    actor = accounts.principal(Role.CACHE_ADMINISTRATOR)
    services.pins_add(actor=actor, pins={"faq": TIP}, reason="the front page asks it")
    services.pins_add(actor=actor, pins={"faq": TIP[::-1]}, reason="a new text")
    assert [(pin.name, pin.tip) for pin in selectors.current_policy().pins] == [("faq", TIP[::-1])]
    services.pin_remove(actor=actor, name="faq", reason="gone")
    assert selectors.current_policy().pins == ()
    with pytest.raises(UnknownPin):
        services.pin_remove(actor=actor, name="faq", reason="gone")
    with pytest.raises(PolicyRefused, match="64"):
        services.pins_add(actor=actor, pins={"faq": "abc"}, reason="no hash")


def test_a_change_is_published_when_it_is_committed(django_capture_on_commit_callbacks: Any) -> None:
    assert publish_current() is Published.CURRENT
    with django_capture_on_commit_callbacks(execute=True):
        row = factories.save(ttl_s=3600.0)
        assert published_version() == 1, "not before"
    assert published_version() == row.number
    feed = PolicyFeed(index())
    feed.refresh()
    assert feed.current.find("chat").ttl_s == 3600


def test_a_database_that_was_restored_is_noticed_and_overtakes() -> None:
    index().publish_policy(9, b"{}")
    assert publish_current() is Published.AHEAD
    assert factories.save(ttl_s=3600.0).number == 10
    assert publish_current() is Published.CURRENT


@pytest.mark.parametrize("name", ["", "a/b", "..", "a\\b", "a\nb"])
def test_a_pin_is_named_by_what_fits_into_a_path(name: str) -> None:
    with pytest.raises(PolicyRefused, match="pin"):
        services.pins_add(actor=accounts.principal(Role.CACHE_ADMINISTRATOR), pins={name: TIP}, reason="x")
