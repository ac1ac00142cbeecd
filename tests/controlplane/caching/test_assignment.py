from __future__ import annotations

import pytest
from django.core import signing

from controlplane.accounts.permissions import Role, Scope, can
from controlplane.accounts.roles import Action
from controlplane.caching import tickets
from controlplane.caching.assignment import Assignment, retention_class
from tests.controlplane.accounts.factories import key_principal, user_principal
from workers.kvstore.policy import AssignmentRule, RetentionClass, RetentionPolicy

POLICY = RetentionPolicy(
    version=1,
    classes=tuple(RetentionClass(name=name, ttl_s=60.0) for name in ("chat", "agent", "batch", "vip")),
    rules=(
        AssignmentRule(retention_class="vip", key_id="1", tools=True),
        AssignmentRule(retention_class="batch", header=("X-Kind", "nightly")),
        AssignmentRule(retention_class="agent", tools=True),
    ),
)


@pytest.mark.parametrize(
    ("tools", "headers", "expected"),
    [
        (False, {}, "chat"),
        (True, {}, "vip"),
        (False, {"x-KIND": "nightly"}, "batch"),
        (False, {"x-kind": "daily"}, "chat"),
        (True, {"x-kind": "nightly"}, "vip"),
    ],
)
def test_the_first_rule_that_holds_wins(tools: bool, headers: dict[str, str], expected: str) -> None:
    principal = key_principal(Scope.INFERENCE)
    assert retention_class(POLICY, principal=principal, headers=headers, tools=tools) == expected


def test_a_persons_id_is_no_keys_id() -> None:
    person = user_principal((Role.OPERATOR, None))
    assert person.id == "1"
    assert retention_class(POLICY, principal=person, headers={}, tools=True) == "agent"


def test_a_ticket_names_its_class_and_may_infer_only() -> None:
    raw = tickets.issue(tickets.Ticket(job=7, tenant="bistro", retention_class="batch"))
    headers = {tickets.HEADER: raw}
    assert Assignment(None).classify(key_principal(Scope.INFERENCE), headers, tools=True) == "batch"
    ticket = tickets.read(raw)
    assert ticket is not None
    assert ticket.principal.tenant == "bistro"
    assert [action for action in Action if can(ticket.principal, action)] == [Action.INFERENCE_USE]


def test_a_ticket_that_is_forged_altered_or_old_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    good = tickets.issue(tickets.Ticket(job=7, tenant="bistro", retention_class="batch"))
    theirs = {"job": 7, "tenant": "x", "retention_class": "chat"}
    forged = signing.dumps(theirs, key="guess", salt="galley.caching.warming")
    assert [tickets.read(raw) for raw in (forged, good[:-2] + "xx", "nonsense")] == [None, None, None]
    other_use = signing.dumps(theirs)
    assert tickets.read(other_use) is None
    monkeypatch.setattr(tickets, "LIFE_S", -1)
    assert tickets.read(good) is None


async def test_a_gateway_follows_the_published_policy() -> None:
    from workers.kvstore.policy import encode

    class Client:
        version, body = b"1", encode(POLICY)

        async def hget(self, key: str, field: str) -> bytes:
            assert key == "galley:{kv}:policy"
            return getattr(self, field)

    assignment = Assignment(Client())
    assert assignment.policy.version == 0
    await assignment.refresh()
    assert assignment.policy == POLICY
