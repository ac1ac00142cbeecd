"""Keys and tenants as JSON under `/api/`: keys ask `keys.view` or `keys.manage` in their tenant."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.exceptions import ValidationError as ApiValidationError
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.accounts import selectors, services
from controlplane.accounts.authentication import Allowed, principal_of
from controlplane.accounts.limits import FIELDS, Limits, limits_changed
from controlplane.accounts.models import APIKey, Tenant
from controlplane.accounts.permissions import Action, PermissionRefused, Principal, Scope, can, require

T = TypeVar("T")
LONGEST_OVERLAP_H = 24 * 90


class LimitsFields(serializers.Serializer[Any]):
    """Left out: stays as it is. Null: no limit."""

    requests_per_minute = serializers.IntegerField(min_value=1, allow_null=True, required=False)
    tokens_per_minute = serializers.IntegerField(min_value=1, allow_null=True, required=False)
    concurrent_requests = serializers.IntegerField(min_value=1, allow_null=True, required=False)
    budget_micro_usd = serializers.IntegerField(min_value=0, allow_null=True, required=False)
    reason = serializers.CharField(max_length=500, default="", allow_blank=True)


class NewKey(LimitsFields):
    tenant = serializers.SlugField(max_length=63)
    name = serializers.CharField(max_length=100)
    scopes = serializers.ListField(child=serializers.ChoiceField(choices=Scope.values), min_length=1, max_length=8)
    expires_at = serializers.DateTimeField(allow_null=True, default=None)


class Rotation(serializers.Serializer[Any]):
    overlap_hours = serializers.FloatField(min_value=0, max_value=LONGEST_OVERLAP_H, default=24)
    reason = serializers.CharField(max_length=500, default="", allow_blank=True)


class NewTenant(LimitsFields):
    slug = serializers.SlugField(max_length=63)
    name = serializers.CharField(max_length=200)


def done(change: Callable[[], T]) -> T:
    """Runs a service; its refusals become 400 and 403."""
    try:
        return change()
    except PermissionRefused as error:
        raise PermissionDenied(str(error)) from error
    except ValidationError as error:
        raise ApiValidationError(error.message_dict if hasattr(error, "error_dict") else error.messages) from error


def _limits(values: dict[str, Any]) -> Limits:
    return limits_changed(Limits(), _changes(values))


def _changes(values: dict[str, Any]) -> dict[str, int | None]:
    return {name: values[name] for name in FIELDS if name in values}


class KeysAccess(APIView):
    permission_classes = (IsAuthenticated,)

    def who(self, request: Request) -> Principal:
        principal = principal_of(request)
        assert principal is not None  # IsAuthenticated saw to it
        return principal

    def key(self, request: Request, prefix: str) -> APIKey:
        """404 also for keys of tenants whose keys the principal may not see."""
        found = selectors.key_by_prefix(prefix)
        if found is None or not can(self.who(request), Action.KEYS_VIEW, tenant=found.tenant.slug):
            raise NotFound(f"there is no key {prefix[:11]}")
        return found


class KeyList(KeysAccess):
    def get(self, request: Request) -> Response:
        principal = self.who(request)
        seen = [t for t in selectors.tenants() if can(principal, Action.KEYS_VIEW, tenant=t.slug)]
        if not seen:
            raise PermissionDenied("this key or user sees nobody's keys")
        return Response({"results": [key_json(key) for key in selectors.api_keys().filter(tenant__in=seen)]})

    def post(self, request: Request) -> Response:
        """The only response that has the key itself."""
        body = NewKey(data=request.data)
        body.is_valid(raise_exception=True)
        values = body.validated_data
        # First: who may make no keys there does not learn whether it exists.
        done(lambda: require(self.who(request), Action.KEYS_MANAGE, tenant=values["tenant"]))
        tenant = selectors.tenant_by_slug(values["tenant"])
        if tenant is None:
            raise ApiValidationError({"tenant": f"there is no tenant {values['tenant']}"})
        key, raw = done(
            lambda: services.key_create(
                actor=self.who(request),
                tenant=tenant,
                name=values["name"],
                scopes=values["scopes"],
                expires_at=values["expires_at"],
                limits=_limits(values),
                reason=values["reason"],
            )
        )
        return _secret({**key_json(key), "key": raw})


class KeyDetail(KeysAccess):
    def get(self, request: Request, prefix: str) -> Response:
        return Response(key_json(self.key(request, prefix)))

    def patch(self, request: Request, prefix: str) -> Response:
        key = self.key(request, prefix)
        body = LimitsFields(data=request.data)
        body.is_valid(raise_exception=True)
        values = body.validated_data
        limits = _changes(values)
        changed = done(
            lambda: services.key_set_limits(actor=self.who(request), key=key, limits=limits, reason=values["reason"])
        )
        return Response(key_json(changed))

    def delete(self, request: Request, prefix: str) -> Response:
        key = self.key(request, prefix)
        done(lambda: services.key_revoke(actor=self.who(request), key=key))
        return Response(status=status.HTTP_204_NO_CONTENT)


class KeyRotate(KeysAccess):
    def post(self, request: Request, prefix: str) -> Response:
        key = self.key(request, prefix)
        body = Rotation(data=request.data)
        body.is_valid(raise_exception=True)
        overlap = timedelta(hours=body.validated_data["overlap_hours"])
        new, raw = done(
            lambda: services.key_rotate(
                actor=self.who(request), key=key, overlap=overlap, reason=body.validated_data["reason"]
            )
        )
        return _secret({**key_json(new), "key": raw})


def _secret(body: dict[str, Any]) -> Response:
    return Response(body, status=status.HTTP_201_CREATED, headers={"cache-control": "no-store"})


class TenantsAccess(APIView):
    permission_classes = (Allowed,)
    read_action = Action.TENANTS_MANAGE
    write_action = Action.TENANTS_MANAGE
    principal: Principal

    @staticmethod
    def tenant(slug: str) -> Tenant:
        found = selectors.tenant_by_slug(slug)
        if found is None:
            raise NotFound(f"there is no tenant {slug}")
        return found


class TenantList(TenantsAccess):
    def get(self, request: Request) -> Response:
        return Response({"results": [tenant_json(tenant) for tenant in selectors.tenants()]})

    def post(self, request: Request) -> Response:
        body = NewTenant(data=request.data)
        body.is_valid(raise_exception=True)
        values = body.validated_data
        tenant = done(
            lambda: services.tenant_create(
                actor=self.principal, slug=values["slug"], name=values["name"], limits=_limits(values)
            )
        )
        return Response(tenant_json(tenant), status=status.HTTP_201_CREATED)


class TenantDetail(TenantsAccess):
    def get(self, request: Request, slug: str) -> Response:
        return Response(tenant_json(self.tenant(slug)))

    def patch(self, request: Request, slug: str) -> Response:
        tenant = self.tenant(slug)
        body = LimitsFields(data=request.data)
        body.is_valid(raise_exception=True)
        values = body.validated_data
        limits = _changes(values)
        changed = done(
            lambda: services.tenant_set_limits(
                actor=self.principal, tenant=tenant, limits=limits, reason=values["reason"]
            )
        )
        return Response(tenant_json(changed))

    def delete(self, request: Request, slug: str) -> Response:
        tenant = self.tenant(slug)
        done(lambda: services.tenant_delete(actor=self.principal, tenant=tenant))
        return Response(status=status.HTTP_204_NO_CONTENT)


def key_json(key: APIKey) -> dict[str, Any]:
    """Without anything secret."""
    return {
        "id": key.pk,
        "prefix": f"gk-{key.prefix}",
        "tenant": key.tenant.slug,
        "name": key.name,
        "scopes": list(key.scopes),
        "state": key.state,
        "created_at": key.created_at.isoformat(),
        "created_by": key.created_by,
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "last_used_at": key.last_used_at.isoformat() if key.last_used_at else None,
        "limits": key.limits.as_dict(),
    }


def tenant_json(tenant: Tenant) -> dict[str, Any]:
    return {
        "slug": tenant.slug,
        "name": tenant.name,
        "created_at": tenant.created_at.isoformat(),
        "limits": tenant.limits.as_dict(),
    }
