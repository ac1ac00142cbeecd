from __future__ import annotations

import uuid

import pytest
from django.db import DatabaseError, connection, transaction

from controlplane.accounts.permissions import SYSTEM
from controlplane.audit import selectors
from controlplane.audit.models import AppendOnlyError, AuditEvent
from controlplane.audit.services import AuditOutsideTransaction, record

pytestmark = pytest.mark.integration


def event(action: str = "thing.change", target: str = "thing:1") -> AuditEvent:
    return record(actor=SYSTEM, action=action, target=target, before={"a": 1}, after={"a": 2}, reason="because")


@pytest.mark.django_db
def test_an_event_says_who_what_and_why() -> None:
    made = AuditEvent.objects.get(pk=event().pk)
    assert (made.actor_kind, made.actor_label) == ("system", "galley")
    assert (made.before, made.after, made.reason) == ({"a": 1}, {"a": 2}, "because")
    assert made.request_id == ""


@pytest.mark.django_db
def test_the_model_refuses_changes() -> None:
    made = event()
    with pytest.raises(AppendOnlyError):
        made.save()
    with pytest.raises(AppendOnlyError):
        made.delete()
    with pytest.raises(AppendOnlyError):
        AuditEvent.objects.update(reason="")
    with pytest.raises(AppendOnlyError):
        AuditEvent.objects.all().delete()


@pytest.mark.django_db
@pytest.mark.parametrize("statement", ["UPDATE audit_auditevent SET reason = ''", "DELETE FROM audit_auditevent"])
def test_the_database_refuses_changes_past_the_model(statement: str) -> None:
    event()
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)
    assert AuditEvent.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_nothing_is_recorded_outside_the_transaction_of_the_change() -> None:
    with pytest.raises(AuditOutsideTransaction):
        event()


@pytest.mark.django_db
def test_reading_newest_first_by_prefix_and_page() -> None:
    first, second = event("key.create", "key:a"), event("key.revoke", "key:a")
    other = event("deployment.scale", "deployment:x")
    assert list(selectors.events()) == [other, second, first]
    assert list(selectors.events(action="key.")) == [second, first]
    assert list(selectors.events(target="deployment:")) == [other]
    assert list(selectors.events(actor=uuid.uuid4().hex)) == []
    assert list(selectors.events(before_id=second.pk)) == [first]
