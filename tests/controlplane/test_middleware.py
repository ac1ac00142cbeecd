from __future__ import annotations

import asyncio

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from controlplane.middleware import RequestIdMiddleware, current_request_id


def test_each_response_carries_an_id_of_our_own() -> None:
    seen: list[str] = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append(current_request_id())
        return HttpResponse()

    middleware = RequestIdMiddleware(view)
    factory = RequestFactory()
    ids = [middleware(factory.get("/", headers={"x-request-id": "mine"}))["x-request-id"] for _ in range(2)]  # type: ignore[index]
    assert seen == ids
    assert len(set(ids)) == 2
    assert "mine" not in ids
    assert current_request_id() == ""


async def test_concurrent_requests_keep_theirs() -> None:
    async def view(request: HttpRequest) -> HttpResponse:
        mine = current_request_id()
        await asyncio.sleep(0)
        assert current_request_id() == mine
        return HttpResponse(mine)

    middleware = RequestIdMiddleware(view)
    factory = RequestFactory()
    responses = await asyncio.gather(*(middleware(factory.get("/")) for _ in range(20)))  # type: ignore[arg-type]
    assert len({response["x-request-id"] for response in responses}) == 20
    assert all(response.content.decode() == response["x-request-id"] for response in responses)  # type: ignore[attr-defined]


@pytest.mark.integration
@pytest.mark.django_db
def test_errors_carry_it_too(client: object) -> None:
    response = client.get("/api/workers")  # type: ignore[attr-defined]
    assert response.status_code in (401, 403)
    assert response["x-request-id"].startswith("req_")
