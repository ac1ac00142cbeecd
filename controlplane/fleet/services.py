"""The only writers of nodes, deployments, revisions, pools and workers (reconciliation has a module of its own).

Changes that somebody asked for are audited in their own transaction; what agents and reconciliation observe is not a
change of anybody's mind and leaves its trace in state, reason and since.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from controlplane.accounts.permissions import Action, Principal, require
from controlplane.audit.services import record
from controlplane.config import home
from controlplane.fleet.errors import DeploymentRefused, UnknownDeployment, UnknownNode
from controlplane.fleet.models import Deployment, EvictionFreeze, Node, Pool, Revision
from controlplane.fleet.observations import node_seen, worker_observed, worker_removed
from controlplane.fleet.reconciliation import reconcile
from controlplane.fleet.signals import nudge_node, reconcile_soon
from controlplane.fleet.specification import ModelRef, RevisionSpec
from controlplane.fleet.statuses import DeploymentState
from workers.manifest import ManifestError, read_manifest
from workers.protocol import Role
from workers.spec import EngineSettings

__all__ = [
    "deployment_create", "deployment_delete", "deployment_scale", "eviction_freeze_confirm", "node_resume",
    "node_seen", "node_stop_all", "reconcile", "worker_observed", "worker_removed",
]  # fmt: skip

MAX_REPLICAS = 1024
NAMES_LOCK = 0x6A11E004
"""PostgreSQL advisory lock: of two deployments that are made at once, the second sees the first one's aliases."""


def _model_ref(model: str) -> ModelRef:
    try:
        manifest = read_manifest(home().models / model)
    except ManifestError as error:
        raise DeploymentRefused(str(error)) from error
    return ModelRef(
        name=manifest.name,
        weights_fingerprint=manifest.weights_fingerprint,
        tokenizer_fingerprint=manifest.tokenizer_fingerprint,
    )


def _check_replicas(replicas: dict[Role, int]) -> None:
    for role, count in replicas.items():
        if not 0 <= count <= MAX_REPLICAS:
            raise DeploymentRefused(f"{count} {role} replicas; between 0 and {MAX_REPLICAS} are possible")
    if bool(replicas[Role.PREFILL]) != bool(replicas[Role.DECODE]):
        raise DeploymentRefused(
            f"{replicas[Role.PREFILL]} prefill and {replicas[Role.DECODE]} decode replicas serve nothing; "
            "give both at least one, or use role both"
        )


def _check_names(name: str, aliases: Sequence[str]) -> None:
    """Raises DeploymentRefused where a client's `model` would mean two deployments."""
    wanted = {name, *aliases}
    if len(wanted) != 1 + len(aliases):
        raise DeploymentRefused(f"an alias of {name} is given twice, or is its own name")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [NAMES_LOCK])
    for other in Deployment.objects.all():
        taken = wanted & {other.name, *other.aliases}
        if taken:
            raise DeploymentRefused(f"{', '.join(sorted(taken))} already means deployment {other.name}")


@transaction.atomic
def deployment_create(
    *,
    actor: Principal,
    name: str,
    model: str,
    prefill_replicas: int,
    decode_replicas: int,
    both_replicas: int = 0,
    engine: EngineSettings,
    aliases: Sequence[str] = (),
    reason: str = "",
) -> Deployment:
    """Offer a model of the store under `name` and `aliases`. Workers follow at the next reconciliation.

    Raises PermissionRefused, ValidationError (the name) and DeploymentRefused (model, replicas, a name already taken).
    """
    require(actor, Action.FLEET_OPERATE)
    replicas = {Role.PREFILL: prefill_replicas, Role.DECODE: decode_replicas, Role.BOTH: both_replicas}
    _check_replicas(replicas)
    if not any(replicas.values()):
        raise DeploymentRefused(f"deployment {name} has no replica; give it one prefill and one decode, or one both")
    spec = RevisionSpec(model=_model_ref(model), engine=engine)
    now = timezone.now()
    deployment = Deployment(
        name=name, model_name=model, aliases=list(aliases), reason="waiting for reconciliation", since=now
    )
    deployment.full_clean()
    _check_names(name, aliases)
    try:
        deployment.save()
    except IntegrityError as error:  # two at once; the loser's transaction is over
        raise ValidationError({"name": f"there is a deployment {name} already"}) from error
    revision = Revision(deployment=deployment, number=1, hash=spec.hash(), spec=spec.to_json(), created_by=actor.label)
    revision.full_clean()
    revision.save()
    for role, count in replicas.items():
        pool = Pool(revision=revision, role=role.value, replicas=count)
        pool.full_clean()
        pool.save()
    deployment.revision = revision
    deployment.save(update_fields=["revision"])
    record(
        actor=actor,
        action="deployment.create",
        target=f"deployment:{name}",
        before=None,
        after={"model": model, "aliases": list(aliases), "revision": revision.hash, "replicas": _by_role(replicas)},
        reason=reason,
    )
    reconcile_soon()
    return deployment


def _by_role(replicas: dict[Role, int]) -> dict[str, int]:
    return {role.value: count for role, count in replicas.items()}


def _locked(name: str) -> Deployment:
    deployment = Deployment.objects.select_for_update().filter(name=name).first()
    if deployment is None:
        raise UnknownDeployment(f"there is no deployment {name}")
    return deployment


@transaction.atomic
def deployment_scale(*, actor: Principal, deployment: str, role: Role, replicas: int, reason: str = "") -> Deployment:
    """Set the replicas of one role. The revision stays, so running workers do too. Both to zero stops the deployment.

    Raises PermissionRefused, UnknownDeployment, DeploymentRefused.
    """
    require(actor, Action.FLEET_OPERATE)
    row = _locked(deployment)
    if row.state == DeploymentState.DELETING:
        raise DeploymentRefused(f"deployment {deployment} is being deleted")
    pool = Pool.objects.select_for_update().get(revision=row.revision, role=role.value)
    before = pool.replicas
    if not 0 <= replicas <= MAX_REPLICAS:
        raise DeploymentRefused(f"{replicas} {role} replicas; between 0 and {MAX_REPLICAS} are possible")
    pool.replicas = replicas
    pool.full_clean()
    pool.save(update_fields=["replicas"])
    record(
        actor=actor,
        action="deployment.scale",
        target=f"deployment:{deployment}",
        before={role.value: before},
        after={role.value: replicas},
        reason=reason,
    )
    reconcile_soon()
    return row


@transaction.atomic
def deployment_delete(*, actor: Principal, deployment: str, reason: str = "") -> None:
    """Drain and stop its workers; the rows go when the last process has. Idempotent while that lasts."""
    require(actor, Action.FLEET_OPERATE)
    row = _locked(deployment)
    if row.state == DeploymentState.DELETING:
        return
    before = {"model": row.model_name, "aliases": row.aliases}
    row.state = DeploymentState.DELETING
    row.reason = "its workers are being stopped"
    row.since = timezone.now()
    row.save(update_fields=["state", "reason", "since"])
    record(
        actor=actor,
        action="deployment.delete",
        target=f"deployment:{deployment}",
        before=before,
        after=None,
        reason=reason,
    )
    reconcile_soon()


def _node(name: str) -> Node:
    node = Node.objects.select_for_update(of=("self",)).filter(name=name).first()
    if node is None:
        raise UnknownNode(f"node {name} is not registered; start its agent first")
    return node


@transaction.atomic
def node_stop_all(*, actor: Principal, node: str, reason: str = "") -> None:
    """Nothing shall run on the node until it is resumed. Deployments keep their wanted size. Idempotent."""
    require(actor, Action.FLEET_OPERATE)
    row = _node(node)
    if row.stopped_at is None:
        row.stopped_at = timezone.now()
        row.stopped_reason = reason
        row.full_clean()
        row.save(update_fields=["stopped_at", "stopped_reason"])
        record(actor=actor, action="node.stop", target=f"node:{node}", before=None, after=None, reason=reason)
    nudge_node(node)


@transaction.atomic
def node_resume(*, actor: Principal, node: str, reason: str = "") -> None:
    """What was wanted on the node runs again. Idempotent."""
    require(actor, Action.FLEET_OPERATE)
    row = _node(node)
    if row.stopped_at is not None:
        before = {"stopped_at": row.stopped_at.isoformat(), "reason": row.stopped_reason}
        row.stopped_at, row.stopped_reason = None, ""
        row.full_clean()
        row.save(update_fields=["stopped_at", "stopped_reason"])
        record(actor=actor, action="node.resume", target=f"node:{node}", before=before, after=None, reason=reason)
        reconcile_soon()
    nudge_node(node)


@transaction.atomic
def eviction_freeze_confirm(*, actor: Principal, reason: str) -> None:
    """An operator says that the workers are really lost: reconciliation may give them up. No freeze, no effect."""
    require(actor, Action.FLEET_OPERATE)
    freeze = EvictionFreeze.objects.select_for_update().first()
    if freeze is None or freeze.confirmed_at is not None:
        return
    freeze.confirmed_at = timezone.now()
    freeze.confirmed_by = actor.label
    freeze.full_clean()
    freeze.save(update_fields=["confirmed_at", "confirmed_by"])
    record(
        actor=actor,
        action="eviction_freeze.confirm",
        target="fleet:evictions",
        before={"reason": freeze.reason},
        after=None,
        reason=reason,
    )
    reconcile_soon()
