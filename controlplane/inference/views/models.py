"""`GET /v1/models` and `GET /v1/models/{id}`, in OpenAI's shape or, asked with `anthropic-version`, in Anthropic's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from controlplane.accounts.permissions import Action
from controlplane.inference.api import ANTHROPIC_VERSION, api_view, errors_by_header
from controlplane.inference.authentication import principal_of, require_any
from controlplane.inference.catalog import Catalog, Route, Unavailable
from controlplane.inference.errors import invalid, model_not_found
from controlplane.inference.replies.base import encode
from controlplane.inference.runtime import current

PAGE = 20
MOST = 1000


async def _authorized(request: HttpRequest) -> Catalog:
    principal = await principal_of(request)
    require_any(principal, Action.INFERENCE_USE, Action.MODELS_VIEW)
    return (await current()).catalog


@api_view("GET", "HEAD", errors=errors_by_header)
async def model_list(request: HttpRequest) -> HttpResponseBase:
    catalog = await _authorized(request)
    names = sorted(catalog.names())
    if ANTHROPIC_VERSION in request.headers:
        return _json(_anthropic_page(request, catalog, names))
    return _json({"object": "list", "data": [_openai(catalog, name, catalog.names()[name]) for name in names]})


@api_view("GET", "HEAD", errors=errors_by_header)
async def model_detail(request: HttpRequest, name: str) -> HttpResponseBase:
    catalog = await _authorized(request)
    route = catalog.find(name)
    if route is None:
        raise model_not_found(name)
    shape = _anthropic if ANTHROPIC_VERSION in request.headers else _openai
    return _json(shape(catalog, name, route))


def _anthropic_page(request: HttpRequest, catalog: Catalog, names: list[str]) -> dict[str, Any]:
    """Cursors are names: `after_id` gives what comes behind it, `before_id` what comes before."""
    given = request.GET.get("limit", str(PAGE))
    if not (given.isascii() and given.isdigit() and 1 <= int(given) <= MOST):
        raise invalid(f"`limit` must be between 1 and {MOST}.", param="limit", code="invalid_value")
    limit = int(given)
    before, after = request.GET.get("before_id"), request.GET.get("after_id")
    wanted = [name for name in names if (not after or name > after) and (not before or name < before)]
    page = wanted[-limit:] if before else wanted[:limit]
    return {
        "data": [_anthropic(catalog, name, catalog.names()[name]) for name in page],
        "has_more": len(page) < len(wanted),
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
    }


def _openai(catalog: Catalog, name: str, route: Route) -> dict[str, Any]:
    """`root` is the model behind the name."""
    context = _context(catalog, route)
    return {
        "id": name, "object": "model", "created": route.created, "owned_by": "galley", "root": route.model,
        "max_model_len": context,
    }  # fmt: skip


def _anthropic(catalog: Catalog, name: str, route: Route) -> dict[str, Any]:
    created = datetime.fromtimestamp(route.created, UTC).isoformat().replace("+00:00", "Z")
    context = _context(catalog, route)
    return {
        "type": "model", "id": name, "display_name": _display_name(catalog, route), "created_at": created,
        "max_input_tokens": context, "max_tokens": context,
    }  # fmt: skip


def _display_name(catalog: Catalog, route: Route) -> str:
    try:
        return catalog.model(route).manifest.display_name
    except Unavailable:
        return route.model


def _context(catalog: Catalog, route: Route) -> int | None:
    try:
        own = catalog.model(route).manifest.max_context
    except Unavailable:
        return route.max_context
    return min(own, route.max_context or own)


def _json(body: dict[str, Any]) -> HttpResponse:
    return HttpResponse(encode(body), content_type="application/json")
