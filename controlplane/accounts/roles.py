"""The vocabulary of permission: roles of users, scopes of keys, and the actions both amount to."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from django.db import models


class Role(models.TextChoices):
    VIEWER = "viewer", "Viewer"
    OPERATOR = "operator", "Operator"
    CACHE_ADMINISTRATOR = "cache_administrator", "Cache administrator"
    BILLING = "billing", "Billing"
    ADMINISTRATOR = "administrator", "Administrator"


class Scope(models.TextChoices):
    INFERENCE = "inference", "Inference"
    MODELS = "models", "List models"
    TENANT = "tenant", "Keys and usage of the tenant"
    MANAGEMENT = "management", "Manage the cluster"


class Action(enum.StrEnum):
    """What can be asked of `can()`. Those in CLUSTER_ACTIONS concern the whole installation, the others one tenant."""

    INFERENCE_USE = "inference.use"
    MODELS_VIEW = "models.view"
    KEYS_VIEW = "keys.view"
    KEYS_MANAGE = "keys.manage"
    COSTS_VIEW = "costs.view"
    TELEMETRY_VIEW = "telemetry.view"
    FLEET_VIEW = "fleet.view"
    FLEET_OPERATE = "fleet.operate"
    CACHE_MANAGE = "cache.manage"
    PRICES_MANAGE = "prices.manage"
    AUDIT_VIEW = "audit.view"
    USERS_MANAGE = "users.manage"
    TENANTS_MANAGE = "tenants.manage"


CLUSTER_ACTIONS: Final[frozenset[Action]] = frozenset(
    {
        Action.TELEMETRY_VIEW,
        Action.FLEET_VIEW,
        Action.FLEET_OPERATE,
        Action.CACHE_MANAGE,
        Action.PRICES_MANAGE,
        Action.AUDIT_VIEW,
        Action.USERS_MANAGE,
        Action.TENANTS_MANAGE,
    }
)

_VIEW: Final = frozenset({Action.MODELS_VIEW, Action.TELEMETRY_VIEW, Action.FLEET_VIEW})

ROLE_ACTIONS: Final[Mapping[Role, frozenset[Action]]] = {
    Role.VIEWER: _VIEW,
    Role.OPERATOR: _VIEW | {Action.INFERENCE_USE, Action.FLEET_OPERATE, Action.KEYS_VIEW},
    Role.CACHE_ADMINISTRATOR: _VIEW | {Action.INFERENCE_USE, Action.CACHE_MANAGE},
    Role.BILLING: _VIEW | {Action.COSTS_VIEW, Action.PRICES_MANAGE, Action.KEYS_VIEW},
    Role.ADMINISTRATOR: frozenset(Action),
}

SCOPE_ACTIONS: Final[Mapping[Scope, frozenset[Action]]] = {
    Scope.INFERENCE: frozenset({Action.INFERENCE_USE}),
    Scope.MODELS: frozenset({Action.MODELS_VIEW}),
    Scope.TENANT: frozenset({Action.KEYS_VIEW, Action.KEYS_MANAGE, Action.COSTS_VIEW}),
    Scope.MANAGEMENT: _VIEW | {Action.FLEET_OPERATE, Action.CACHE_MANAGE},
}
