from __future__ import annotations

import threading

import pytest
from django.core.exceptions import ValidationError
from django.db import connection, connections, transaction

from controlplane.accounts.permissions import SYSTEM, PermissionRefused, Role
from controlplane.audit.models import AuditEvent
from controlplane.fleet import selectors, services
from controlplane.fleet.errors import DeploymentRefused, UnknownDeployment, UnknownNode
from controlplane.fleet.models import Deployment, ImmutableRevision, Pool, Revision
from controlplane.fleet.statuses import DeploymentState
from tests.controlplane.accounts.factories import user_principal
from tests.controlplane.fleet import factories
from tests.controlplane.waiting import wait_until
from workers.protocol import Role as WorkerRole
from workers.spec import EngineSettings

pytestmark = [pytest.mark.integration, pytest.mark.django_db]

VIEWER = user_principal((Role.VIEWER, None))
OPERATOR = user_principal((Role.OPERATOR, None))


def create(name: str, *, aliases: tuple[str, ...] = (), prefill: int = 1, decode: int = 1, both: int = 0) -> Deployment:
    return services.deployment_create(
        actor=OPERATOR,
        name=name,
        model=factories.model(),
        prefill_replicas=prefill,
        decode_replicas=decode,
        both_replicas=both,
        engine=EngineSettings(),
        aliases=aliases,
    )


def test_a_deployment_has_one_revision_with_a_pool_per_role_of_one_hash() -> None:
    deployment = create("chat", aliases=("gpt-nothing",))
    revision = Revision.objects.get()
    assert deployment.revision == revision
    assert {pool.role: pool.replicas for pool in Pool.objects.all()} == {"prefill": 1, "decode": 1, "both": 0}
    assert revision.spec["model"]["weights_fingerprint"] == "a" * 64
    event = AuditEvent.objects.get(action="deployment.create")
    assert event.actor_label == OPERATOR.label
    assert event.after is not None
    assert event.after["revision"] == revision.hash


def test_a_revision_is_never_changed() -> None:
    create("chat")
    with pytest.raises(ImmutableRevision):
        Revision.objects.get().save()


@pytest.mark.parametrize(("prefill", "decode", "both"), [(1, 0, 0), (0, 1, 0), (0, 0, 0), (-1, 1, 0), (5000, 1, 0)])
def test_replicas_that_serve_nothing_are_refused(prefill: int, decode: int, both: int) -> None:
    with pytest.raises(DeploymentRefused):
        create("chat", prefill=prefill, decode=decode, both=both)


@pytest.mark.parametrize("name", ["", "Two words", "a" * 41])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        create(name)


def test_a_name_means_one_deployment() -> None:
    create("chat", aliases=("talk",))
    with pytest.raises(ValidationError):
        create("chat")
    with pytest.raises(DeploymentRefused, match="talk"):
        create("talk")
    with pytest.raises(DeploymentRefused, match="chat"):
        create("other", aliases=("chat",))
    with pytest.raises(DeploymentRefused, match="twice"):
        create("other", aliases=("x", "x"))


@pytest.mark.django_db(transaction=True)
def test_of_two_at_once_one_gets_the_alias() -> None:
    """The second is held up until the first is committed, and then sees it."""
    answers: list[str] = []

    def second() -> None:
        try:
            create("second", aliases=("talk",))
        except DeploymentRefused as error:
            answers.append(str(error))
        finally:
            connections.close_all()

    thread = threading.Thread(target=second)
    with transaction.atomic():
        create("first", aliases=("talk",))
        thread.start()
        wait_until(_somebody_waits_for_the_names, "the second waits")
    thread.join(30)
    assert answers == ["talk already means deployment first"]


def _somebody_waits_for_the_names() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted",
            [services.NAMES_LOCK],
        )
        return bool(cursor.fetchone()[0])


def test_a_model_that_is_not_in_the_store_is_named() -> None:
    with pytest.raises(DeploymentRefused, match="models add"):
        services.deployment_create(
            actor=SYSTEM,
            name="chat",
            model="absent",
            prefill_replicas=1,
            decode_replicas=1,
            engine=EngineSettings(),
        )


def test_viewers_change_nothing() -> None:
    factories.deployment("chat")
    factories.node("n1")
    with pytest.raises(PermissionRefused):
        services.deployment_scale(actor=VIEWER, deployment="chat", role=WorkerRole.DECODE, replicas=3)
    with pytest.raises(PermissionRefused):
        services.deployment_delete(actor=VIEWER, deployment="chat")
    with pytest.raises(PermissionRefused):
        services.node_stop_all(actor=VIEWER, node="n1")


def test_scaling_keeps_the_revision() -> None:
    before = factories.deployment("chat").revision
    services.deployment_scale(actor=OPERATOR, deployment="chat", role=WorkerRole.DECODE, replicas=3, reason="load")
    assert Deployment.objects.get().revision == before
    assert Pool.objects.get(role="decode").replicas == 3
    event = AuditEvent.objects.get(action="deployment.scale")
    assert (event.before, event.after, event.reason) == ({"decode": 1}, {"decode": 3}, "load")


def test_what_is_not_there_cannot_be_scaled_or_deleted() -> None:
    with pytest.raises(UnknownDeployment):
        services.deployment_scale(actor=SYSTEM, deployment="no", role=WorkerRole.BOTH, replicas=1)
    with pytest.raises(UnknownDeployment):
        services.deployment_delete(actor=SYSTEM, deployment="no")
    with pytest.raises(UnknownNode):
        services.node_stop_all(actor=SYSTEM, node="no")


def test_deleting_is_idempotent_and_ends_scaling() -> None:
    factories.deployment("chat")
    services.deployment_delete(actor=SYSTEM, deployment="chat")
    services.deployment_delete(actor=SYSTEM, deployment="chat")
    assert AuditEvent.objects.filter(action="deployment.delete").count() == 1
    assert Deployment.objects.get().state == DeploymentState.DELETING
    with pytest.raises(DeploymentRefused):
        services.deployment_scale(actor=SYSTEM, deployment="chat", role=WorkerRole.DECODE, replicas=2)


def test_a_stopped_node_wants_nothing_until_it_is_resumed() -> None:
    factories.node("n1")
    factories.deployment("chat")
    services.reconcile()
    assert len(selectors.node_wanted("n1")) == 2
    services.node_stop_all(actor=SYSTEM, node="n1", reason="make down")
    services.node_stop_all(actor=SYSTEM, node="n1")
    assert selectors.node_wanted("n1") == []
    services.reconcile()
    services.node_resume(actor=SYSTEM, node="n1")
    services.node_resume(actor=SYSTEM, node="n1")
    assert len(selectors.node_wanted("n1")) == 2
    assert list(AuditEvent.objects.filter(target="node:n1").values_list("action", flat=True)) == [
        "node.resume",
        "node.stop",
        "node.register",
    ]
