"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from controlplane.accounts.permissions import Action
from controlplane.inference.api import api_view
from controlplane.inference.authentication import principal_of, require_any
from controlplane.inference.catalog import Catalog, Route, Unavailable
from controlplane.inference.chat_format import ModelBody, ModelList, encode
from controlplane.inference.errors import model_not_found
from controlplane.inference.runtime import current


async def _authorized(request: HttpRequest) -> Catalog:
    principal = await principal_of(request)
    require_any(principal, Action.INFERENCE_USE, Action.MODELS_VIEW)
    return (await current()).catalog


@api_view("GET", "HEAD")
async def model_list(request: HttpRequest) -> HttpResponseBase:
    catalog = await _authorized(request)
    names = catalog.names()
    body = ModelList(data=[_body(catalog, name, names[name]) for name in sorted(names)])
    return HttpResponse(encode(body), content_type="application/json")


@api_view("GET", "HEAD")
async def model_detail(request: HttpRequest, name: str) -> HttpResponseBase:
    catalog = await _authorized(request)
    route = catalog.find(name)
    if route is None:
        raise model_not_found(name)
    return HttpResponse(encode(_body(catalog, name, route)), content_type="application/json")


def _body(catalog: Catalog, name: str, route: Route) -> ModelBody:
    return ModelBody(
        id=name, created=route.created, owned_by="galley", root=route.model, max_model_len=_context(catalog, route)
    )


def _context(catalog: Catalog, route: Route) -> int | None:
    try:
        own = catalog.model(route).manifest.max_context
    except Unavailable:
        return route.max_context
    return min(own, route.max_context or own)
