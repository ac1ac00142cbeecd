"""The caching API under `/api/`: reading needs `telemetry.view`, writing `cache.manage`. Described at `/api/schema`."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from drf_spectacular.utils import OpenApiParameter, OpenApiTypes, extend_schema
from rest_framework import status
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.accounts.authentication import Allowed
from controlplane.accounts.permissions import Action, Principal
from controlplane.caching import overview, presentation, previews, selectors, services
from controlplane.caching import serializers as schema
from controlplane.caching.documents import to_policy
from controlplane.caching.errors import (
    CachingError,
    PolicyConflict,
    PolicyRefused,
    StoreUnavailable,
    UnknownPin,
    UnknownVersion,
)
from controlplane.caching.prefixes import prefix_of
from controlplane.caching.prompts import check_messages, parse
from controlplane.caching.purging import Scope


class CachingView(APIView):
    """Who may, the principal that `Allowed` found, and what a refusal looks like."""

    permission_classes = (Allowed,)
    read_action = Action.TELEMETRY_VIEW
    write_action = Action.CACHE_MANAGE
    principal: Principal

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, CachingError):
            return _refusal(exc)
        return super().handle_exception(exc)

    def checked(self, serializer: type[Any], request: Request) -> dict[str, Any]:
        body = serializer(data=request.data)
        body.is_valid(raise_exception=True)
        values: dict[str, Any] = body.validated_data
        return values


def _refusal(error: CachingError) -> Response:
    """`{"detail", "problems"?}` with the status that fits."""
    body: dict[str, Any] = {"detail": str(error)}
    match error:
        case PolicyConflict():
            return Response(body | {"version": error.current}, status=status.HTTP_409_CONFLICT)
        case PolicyRefused():
            return Response(body | {"problems": error.problems}, status=status.HTTP_400_BAD_REQUEST)
        case UnknownVersion() | UnknownPin():
            return Response(body, status=status.HTTP_404_NOT_FOUND)
        case StoreUnavailable():
            return Response(body, status=status.HTTP_503_SERVICE_UNAVAILABLE)
    return Response(body, status=status.HTTP_400_BAD_REQUEST)


class StoreDetail(CachingView):
    @extend_schema(responses=OpenApiTypes.OBJECT, summary="What the store holds, and what became of the rest")
    def get(self, request: Request) -> Response:
        return Response(
            {
                "contents": presentation.contents_json(overview.contents()),
                "tokens": [presentation.split_json(split) for split in overview.splits()],
                "alerts": [presentation.alert_json(alert) for alert in selectors.open_alerts()],
            }
        )


class AlertList(CachingView):
    @extend_schema(responses=OpenApiTypes.OBJECT, summary="Troubles of the store: open ones, and the last that passed")
    def get(self, request: Request) -> Response:
        return Response(
            {
                "open": [presentation.alert_json(alert) for alert in selectors.open_alerts()],
                "past": [presentation.alert_json(alert) for alert in selectors.past_alerts()],
            }
        )


class PurgeView(CachingView):
    @extend_schema(request=schema.Purge, responses=OpenApiTypes.OBJECT, summary="Remove a tenant, a model or a class")
    def post(self, request: Request) -> Response:
        values = self.checked(schema.Purge, request)
        report = services.purge(
            actor=self.principal, scope=Scope(values["kind"], values["name"]), reason=values["reason"]
        )
        return Response({"extents": report.extents, "claims": report.claims, "unindexed": report.unindexed})


class PolicyDetail(CachingView):
    @extend_schema(responses=schema.Version, summary="The retention policy in force")
    def get(self, request: Request) -> Response:
        row = selectors.current_version()
        if row is None:
            raise Http404
        return Response(presentation.version_json(row))

    @extend_schema(request=schema.Save, responses=schema.Version, summary="Put a policy in force as the next version")
    def put(self, request: Request) -> Response:
        values = self.checked(schema.Save, request)
        row = services.policy_save(
            actor=self.principal,
            draft=to_policy({"version": 1, **values["policy"]}),
            expected_version=values["expected_version"],
            reason=values["reason"],
        )
        return Response(presentation.version_json(row))


class PreviewView(CachingView):
    @extend_schema(request=schema.Draft, responses=OpenApiTypes.OBJECT, summary="What saving a policy would do")
    def post(self, request: Request) -> Response:
        draft = to_policy({"version": 1, **self.checked(schema.Draft, request)["policy"]})
        return Response(presentation.preview_json(previews.policy_preview(draft)))


class RollbackView(CachingView):
    @extend_schema(request=schema.Rollback, responses=schema.Version, summary="Bring an old version back, as a new one")
    def post(self, request: Request) -> Response:
        values = self.checked(schema.Rollback, request)
        row = services.policy_rollback(
            actor=self.principal,
            number=values["version"],
            expected_version=values["expected_version"],
            reason=values["reason"],
        )
        return Response(presentation.version_json(row))


class NewestFirst(CursorPagination):
    ordering = "-number"
    page_size = 50


class VersionList(CachingView):
    @extend_schema(
        parameters=[OpenApiParameter("cursor", str)], responses=schema.Version(many=True), summary="All versions"
    )
    def get(self, request: Request) -> Response:
        pages = NewestFirst()
        rows = list(pages.paginate_queryset(selectors.versions(), request, view=self) or [])
        changed = selectors.version_changes(rows)
        return pages.get_paginated_response([presentation.version_json(row, changed[row.number]) for row in rows])


class VersionDetail(CachingView):
    @extend_schema(responses=schema.Version, summary="One version, and what it changed")
    def get(self, request: Request, number: int) -> Response:
        row = selectors.version(number)
        return Response(presentation.version_json(row, selectors.version_changes([row])[number]))


class PinList(CachingView):
    @extend_schema(
        request=schema.NewPin, responses=schema.Version, summary="Keep a prefix: by its hash, or by a prompt"
    )
    def post(self, request: Request) -> Response:
        values = self.checked(schema.NewPin, request)
        tip = values["tip"]
        if not tip:
            prompt = check_messages(values["messages"], "messages")
            tip = prefix_of(model=values["model"], tenant=values["tenant"], messages=prompt).tip
        row = services.pins_add(actor=self.principal, pins={values["name"]: tip}, reason=values["reason"])
        return Response(presentation.version_json(row), status=status.HTTP_201_CREATED)


class PinDetail(CachingView):
    @extend_schema(parameters=[OpenApiParameter("reason", str, required=True)], responses=schema.Version)
    def delete(self, request: Request, name: str) -> Response:
        reason = str(request.query_params.get("reason", ""))
        return Response(presentation.version_json(services.pin_remove(actor=self.principal, name=name, reason=reason)))


class WarmingList(CachingView):
    @extend_schema(responses=schema.Job(many=True), summary="Warming jobs, newest first")
    def get(self, request: Request) -> Response:
        return Response({"results": [presentation.warm_json(job) for job in selectors.warm_jobs()[:100]]})

    @extend_schema(request=schema.Warm, responses=schema.Job, summary="Send prompts through prefill ahead of need")
    def post(self, request: Request) -> Response:
        values = self.checked(schema.Warm, request)
        job = services.warm_create(
            actor=self.principal,
            model=values["model"],
            tenant=values["tenant"],
            retention_class=values["retention_class"],
            prompts=parse(values["prompts"].encode()),
            pin=values["pin"],
            reason=values["reason"],
        )
        return Response(presentation.warm_json(job), status=status.HTTP_202_ACCEPTED)


class WarmingDetail(CachingView):
    @extend_schema(responses=schema.Job, summary="One job and its progress")
    def get(self, request: Request, job: int) -> Response:
        found = selectors.warm_jobs().filter(pk=job).first()
        if found is None:
            raise Http404
        return Response(presentation.warm_json(found))

    @extend_schema(responses=schema.Job, summary="Cancel; what was warmed stays")
    def delete(self, request: Request, job: int) -> Response:
        if not selectors.warm_jobs().filter(pk=job).exists():
            raise Http404
        return Response(presentation.warm_json(services.warm_cancel(actor=self.principal, job=job)))
