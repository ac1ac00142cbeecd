"""Nodes, deployments, revisions, pools and workers. Written by the services of this app only."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.core.validators import MinValueValidator
from django.db import models
from django.utils import timezone

from controlplane.fleet.statuses import DeploymentState, Desired, RoleChoices, WorkerStatus, transition_allowed


class InvalidTransition(Exception):
    """The state cannot follow the present one; the observation is of something else than this process."""


class ImmutableRevision(Exception):
    """A revision is never changed: make another."""


class HardwareProfile(models.Model):
    """A kind of machine, as data: what a node of it has and what an hour of one of its cards costs."""

    name = models.SlugField(max_length=63, unique=True)
    card = models.CharField(max_length=100)
    device = models.CharField(max_length=8, default="cpu", choices=[("cpu", "CPU"), ("cuda", "CUDA"), ("npu", "NPU")])
    cards_per_node = models.PositiveIntegerField(default=1, validators=[MinValueValidator(1)])
    cards_per_domain = models.PositiveIntegerField(default=1, validators=[MinValueValidator(1)])
    """Cards within one fast interconnect: 64 to 128 in a decode supernode."""
    memory_bytes = models.PositiveBigIntegerField(default=0)
    """Per card; 0 is not known."""
    bandwidth = models.PositiveBigIntegerField(default=0)
    """Memory bandwidth per card, bytes per second; 0 is not known."""
    price_micro_usd_per_card_hour = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class Node(models.Model):
    """A host with a node agent. Its agent registers it, and is the one who knows whether it lives."""

    name = models.SlugField(max_length=63, unique=True)
    hostname = models.CharField(max_length=255, blank=True)
    cores = models.PositiveIntegerField(default=1, validators=[MinValueValidator(1)])
    profile = models.ForeignKey(HardwareProfile, on_delete=models.PROTECT, related_name="nodes")
    first_seen = models.DateTimeField(default=timezone.now, editable=False)
    last_seen = models.DateTimeField(default=timezone.now)
    stopped_at = models.DateTimeField(null=True, blank=True)
    """Somebody asked that nothing run here until it is resumed."""
    stopped_reason = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def price_per_card_hour_micro_usd(self) -> int:
        return self.profile.price_micro_usd_per_card_hour

    def seen_age_s(self, now: datetime | None = None) -> float:
        return max(0.0, ((now or timezone.now()) - self.last_seen).total_seconds())


class Stateful(models.Model):
    """A state that is not final says why it is so, since when, when it is looked at next, and how long it may last."""

    reason = models.CharField(max_length=500, blank=True)
    since = models.DateTimeField(default=timezone.now)
    next_check = models.DateTimeField(null=True, blank=True)
    deadline = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True


class Deployment(Stateful):
    """A model offered under names. Its current revision says how; `state` is derived from its workers."""

    name = models.SlugField(max_length=40, unique=True)
    model_name = models.CharField(max_length=200)
    aliases = models.JSONField(default=list, blank=True)
    """Further names that clients may ask for."""
    state = models.CharField(max_length=16, choices=DeploymentState.choices, default=DeploymentState.PENDING)
    revision = models.ForeignKey("Revision", on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    """The wanted revision."""
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def status(self) -> DeploymentState:
        return DeploymentState(self.state)


class Revision(models.Model):
    """An immutable specification. Workers exchange blocks only within one revision, so they are grouped by its hash."""

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="revisions")
    number = models.PositiveIntegerField()
    hash = models.CharField(max_length=64)
    """SHA-256 of the canonical `spec`, hexadecimal."""
    spec = models.JSONField()
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    created_by = models.CharField(max_length=200)

    class Meta:
        ordering = ("deployment_id", "-number")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["deployment", "number"], name="fleet_revision_number"),
        ]

    def __str__(self) -> str:
        return f"{self.deployment_id}/{self.number} {self.hash[:12]}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise ImmutableRevision(f"revision {self.number} is fixed; make a new one")
        super().save(*args, **kwargs)


class Pool(models.Model):
    """The workers of one role in one revision. `replicas` is the one thing that scaling changes."""

    revision = models.ForeignKey(Revision, on_delete=models.CASCADE, related_name="pools")
    role = models.CharField(max_length=8, choices=RoleChoices.choices)
    replicas = models.PositiveIntegerField(default=1)
    ranks = models.PositiveIntegerField(default=1, validators=[MinValueValidator(1)])
    """Processes, and cards, of one replica."""

    class Meta:
        ordering = ("revision_id", "role")
        constraints: ClassVar = [models.UniqueConstraint(fields=["revision", "role"], name="fleet_pool_role")]

    def __str__(self) -> str:
        return f"{self.revision} {self.role} x{self.replicas}"


class Worker(Stateful):
    """One replica of a pool: what is wanted of it, and what its node's agent last saw."""

    name = models.CharField(max_length=63, unique=True)
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="workers")
    node = models.ForeignKey(Node, on_delete=models.SET_NULL, null=True, blank=True, related_name="workers")
    desired = models.CharField(max_length=8, choices=Desired.choices, default=Desired.RUNNING)
    state = models.CharField(max_length=16, choices=WorkerStatus.choices, default=WorkerStatus.PENDING)
    epoch = models.PositiveBigIntegerField(default=0)
    pid = models.PositiveIntegerField(null=True, blank=True)
    endpoint = models.CharField(max_length=200, blank=True)
    restarts = models.PositiveIntegerField(default=0)
    observed_at = models.DateTimeField(null=True, blank=True)
    """When its agent last spoke of it."""
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ("name",)
        indexes: ClassVar = [models.Index(fields=["node", "desired"], name="fleet_worker_node_desired")]

    def __str__(self) -> str:
        return self.name

    @property
    def status(self) -> WorkerStatus:
        return WorkerStatus(self.state)

    def transition(
        self,
        state: WorkerStatus,
        *,
        reason: str,
        now: datetime,
        next_check: datetime | None = None,
        deadline: datetime | None = None,
        epoch: int | None = None,
    ) -> bool:
        """Move to `state` (not saved). True where anything changed. Raises InvalidTransition.

        `since` is the time of the change of state; a new reason for the same state keeps it.
        """
        new_process = epoch is not None and epoch > self.epoch
        if not transition_allowed(self.status, state, new_process=new_process):
            raise InvalidTransition(f"worker {self.name}: {state} cannot follow {self.state} in epoch {self.epoch}")
        before = (self.state, self.reason, self.next_check, self.deadline, self.epoch)
        if state != self.state or new_process:
            self.since = now
        self.state = state
        self.reason = reason[:500]
        self.next_check = next_check
        self.deadline = deadline
        if epoch is not None:
            self.epoch = epoch
        return before != (self.state, self.reason, self.next_check, self.deadline, self.epoch)


class EvictionFreeze(models.Model):
    """At most one row: most workers looked lost at once, so none is given up until that is explained."""

    since = models.DateTimeField(default=timezone.now)
    reason = models.CharField(max_length=500)
    confirmed_at = models.DateTimeField(null=True, blank=True)
    """An operator said that they are really lost."""
    confirmed_by = models.CharField(max_length=200, blank=True)
    singleton = models.BooleanField(default=True, unique=True, editable=False)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(singleton=True), name="fleet_one_eviction_freeze")
        ]

    def __str__(self) -> str:
        return self.reason
