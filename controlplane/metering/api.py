"""Usage and prices as JSON and CSV under `/api/`: usage needs `costs.view` in the tenant, prices `prices.manage`."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.http import StreamingHttpResponse
from django.utils import timezone
from rest_framework import serializers, status
from rest_framework.exceptions import NotFound, PermissionDenied
from rest_framework.exceptions import ValidationError as ApiValidationError
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.accounts.authentication import Allowed, principal_of
from controlplane.accounts.permissions import Action, Principal
from controlplane.metering import selectors, services
from controlplane.metering.access import visible_tenants
from controlplane.metering.export import hours_csv, requests_csv
from controlplane.metering.models import PriceBook, PriceEntry
from controlplane.metering.services import Rates
from controlplane.metering.usage import (
    BadUsageQuery,
    Grouping,
    Step,
    Usage,
    UsageQuery,
    usage_rows,
    usage_total,
    zone_named,
)

DEFAULT_SPAN = timedelta(days=1)


class UsageParameters(serializers.Serializer[Any]):
    start = serializers.DateTimeField(required=False)
    end = serializers.DateTimeField(required=False)
    zone = serializers.CharField(max_length=64, default="UTC")
    tenant = serializers.CharField(max_length=63, required=False)
    key = serializers.IntegerField(min_value=0, required=False)
    model = serializers.CharField(max_length=200, required=False)
    step = serializers.ChoiceField(choices=[step.value for step in Step], required=False)
    by = serializers.ChoiceField(choices=[by.value for by in Grouping], required=False)
    detail = serializers.ChoiceField(choices=["hours", "requests"], default="hours")


def usage_query(principal: Principal, values: dict[str, Any]) -> UsageQuery:
    """Raises BadUsageQuery, and PermissionDenied where the principal sees nobody's costs."""
    seen = visible_tenants(principal)
    if seen is not None and not seen:
        raise PermissionDenied("this key or user sees nobody's usage")
    tenant = values.get("tenant")
    if tenant is not None and seen is not None and tenant not in seen:
        raise PermissionDenied(f"this key or user may not see the usage of {tenant}")
    end: datetime = values.get("end") or timezone.now()
    try:
        start = values.get("start") or end - DEFAULT_SPAN
    except OverflowError as error:
        raise BadUsageQuery("end: it is out of all bounds") from error
    return UsageQuery(
        start=start,
        end=end,
        zone=zone_named(values["zone"]),
        tenants=[tenant] if tenant is not None else seen,
        key_id=values.get("key"),
        model=values.get("model"),
    ).aligned()


class UsageAccess(APIView):
    permission_classes = (IsAuthenticated,)

    def parameters(self, request: Request) -> tuple[dict[str, Any], UsageQuery]:
        given = UsageParameters(data=request.query_params)
        given.is_valid(raise_exception=True)
        principal = principal_of(request)
        assert principal is not None  # IsAuthenticated saw to it
        try:
            return given.validated_data, usage_query(principal, given.validated_data)
        except BadUsageQuery as error:
            name, _, why = str(error).partition(": ")
            raise ApiValidationError({name: why}) from error


class UsageView(UsageAccess):
    def get(self, request: Request) -> Response:
        values, query = self.parameters(request)
        step = Step(values["step"]) if "step" in values else None
        by = Grouping(values["by"]) if "by" in values else None
        return Response(
            {
                "start": query.start.isoformat(),
                "end": query.end.isoformat(),
                "zone": query.zone.key,
                "total": usage_json(usage_total(query)),
                "rows": [
                    {
                        **({"at": row.at.isoformat()} if row.at is not None else {}),
                        **row.group,
                        **usage_json(row.usage),
                    }
                    for row in usage_rows(query, step=step, by=by)
                ],
            }
        )


class UsageCsv(UsageAccess):
    def get(self, request: Request) -> StreamingHttpResponse:
        values, query = self.parameters(request)
        return csv_response(query, detail=values["detail"])


def csv_response(query: UsageQuery, *, detail: str) -> StreamingHttpResponse:
    parts = requests_csv(query) if detail == "requests" else hours_csv(query)
    response = StreamingHttpResponse(parts, content_type="text/csv; charset=utf-8")
    name = f"usage-{query.start:%Y%m%d}-{query.end:%Y%m%d}-{detail}.csv"
    response["content-disposition"] = f'attachment; filename="{name}"'
    return response


def usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "requests": usage.requests,
        "pool_hit_tokens": usage.pool_hit_tokens,
        "store_hit_tokens": usage.store_hit_tokens,
        "miss_tokens": usage.miss_tokens,
        "output_tokens": usage.output_tokens,
        "amount_pico_usd": usage.amount_pico,
        "amount_usd": f"{usage.amount_usd:f}",
    }


class NewPrice(serializers.Serializer[Any]):
    model = serializers.CharField(max_length=200, default="", allow_blank=True)
    valid_from = serializers.DateTimeField()
    hit = serializers.IntegerField(min_value=0)
    miss = serializers.IntegerField(min_value=0)
    output = serializers.IntegerField(min_value=0)
    peak_hit = serializers.IntegerField(min_value=0)
    peak_miss = serializers.IntegerField(min_value=0)
    peak_output = serializers.IntegerField(min_value=0)
    reason = serializers.CharField(max_length=500, default="", allow_blank=True)


class NewHoliday(serializers.Serializer[Any]):
    day = serializers.DateField()
    name = serializers.CharField(max_length=100)
    reason = serializers.CharField(max_length=500, default="", allow_blank=True)


class PricesAccess(APIView):
    permission_classes = (Allowed,)
    read_action = Action.PRICES_MANAGE
    write_action = Action.PRICES_MANAGE
    principal: Principal

    @staticmethod
    def book() -> PriceBook:
        found = selectors.default_book()
        if found is None:
            raise NotFound("there is no default price book")
        return found


class PricesView(PricesAccess):
    """Prices are micro-dollars per million tokens."""

    def get(self, request: Request) -> Response:
        return Response(book_json(self.book()))

    def post(self, request: Request) -> Response:
        body = NewPrice(data=request.data)
        body.is_valid(raise_exception=True)
        values = dict(body.validated_data)
        model, valid_from, reason = values.pop("model"), values.pop("valid_from"), values.pop("reason")
        try:
            entry = services.price_set(
                actor=self.principal,
                book=self.book(),
                model_name=model,
                rates=Rates(**values),
                valid_from=valid_from,
                reason=reason,
            )
        except ValidationError as error:
            raise ApiValidationError(error.message_dict if hasattr(error, "error_dict") else error.messages) from error
        return Response(entry_json(entry), status=status.HTTP_201_CREATED)


class HolidaysView(PricesAccess):
    def post(self, request: Request) -> Response:
        body = NewHoliday(data=request.data)
        body.is_valid(raise_exception=True)
        try:
            holiday = services.holiday_add(actor=self.principal, book=self.book(), **body.validated_data)
        except ValidationError as error:
            raise ApiValidationError(error.message_dict if hasattr(error, "error_dict") else error.messages) from error
        return Response({"day": holiday.day.isoformat(), "name": holiday.name}, status=status.HTTP_201_CREATED)


def book_json(book: PriceBook) -> dict[str, Any]:
    return {
        "name": book.name,
        "description": book.description,
        "entries": [entry_json(entry) for entry in selectors.price_entries(book)],
        "peak_windows": [
            {"weekdays": selectors.weekday_names(window), "start": str(window.start), "end": str(window.end)}
            for window in book.peak_windows.all()
        ],
        "holidays": [{"day": holiday.day.isoformat(), "name": holiday.name} for holiday in book.holidays.all()],
    }


def entry_json(entry: PriceEntry) -> dict[str, Any]:
    return {
        "id": entry.pk,
        "model": entry.model_name,
        "valid_from": entry.valid_from.isoformat(),
        "valid_to": entry.valid_to.isoformat() if entry.valid_to else None,
        **{name: getattr(entry, name) for name in Rates.__dataclass_fields__},
    }
