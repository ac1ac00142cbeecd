"""`POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from controlplane.accounts.permissions import Action, Principal
from controlplane.inference import sse
from controlplane.inference.api import api_view
from controlplane.inference.authentication import principal_of, require_any
from controlplane.inference.catalog import Route, Unavailable
from controlplane.inference.chat_stream import ChatReply, Collector, OwnedStream, late_body, stream_events
from controlplane.inference.completion import Completion
from controlplane.inference.conversation import ChatModel, Prompt
from controlplane.inference.errors import ApiError, model_not_found, overloaded, too_large
from controlplane.inference.requests import Work
from controlplane.inference.runtime import Gateway, current
from controlplane.inference.schema import ChatCall, parse_chat
from controlplane.middleware import current_request_id
from workers.protocol import CacheScope, Sampling

JSON = "application/json"
DISCONNECTED = "disconnected"


@api_view("POST")
async def chat_completions(request: HttpRequest) -> HttpResponseBase:
    accepted: float = request.accepted_at  # type: ignore[attr-defined]
    principal = await principal_of(request)
    require_any(principal, Action.INFERENCE_USE)
    gateway = await current()
    call = parse_chat(_body(request, gateway), max_choices=gateway.limits.choices)
    route, model = _find(gateway, call.model)
    prompt = await _prepare(gateway, route, model, call)
    completion = await _completion(gateway, principal, route, model, call, prompt, accepted)
    reply = ChatReply(
        id=f"chatcmpl-{current_request_id().removeprefix('req_')}",
        created=int(time.time()),
        call=call,
        tokenizer=model.tokenizer,
        thinks=model.thinks,
        keepalive_s=gateway.limits.keepalive_s,
    )
    try:
        completion.start()
        return await (_streamed(reply, completion) if call.stream else _whole(reply, completion))
    except BaseException as error:  # a client that leaves cancels this task
        completion.close(DISCONNECTED if isinstance(error, asyncio.CancelledError) else "failed")
        raise


def _body(request: HttpRequest, gateway: Gateway) -> bytes:
    """The whole body. Raises ApiError (413). Not `request.body`, whose limit is that of Django's forms."""
    body: bytes = request.read(gateway.limits.body_bytes + 1)
    if len(body) > gateway.limits.body_bytes:
        raise too_large(gateway.limits.body_bytes)
    return body


def _find(gateway: Gateway, name: str) -> tuple[Route, ChatModel]:
    route = gateway.catalog.find(name)
    if route is None:
        if not gateway.catalog.refreshed:
            raise overloaded("The gateway is starting.", retry_after_s=gateway.limits.retry_after_s)
        raise model_not_found(name)
    try:
        return route, gateway.catalog.model(route)
    except Unavailable as error:
        raise ApiError(
            503,
            f"The model `{name}` cannot be served at the moment.",
            type="api_error",
            code="model_unavailable",
            retry_after_s=gateway.limits.retry_after_s,
        ) from error


async def _prepare(gateway: Gateway, route: Route, model: ChatModel, call: ChatCall) -> Prompt:
    limit = min(model.manifest.max_context, route.max_context or model.manifest.max_context)
    characters = sum(
        len(content) if isinstance(content := message["content"], str) else sum(len(part["text"]) for part in content)
        for message in call.messages
    )
    if characters > gateway.limits.thread_encode_chars:
        return await asyncio.to_thread(model.prepare, call, limit)
    return model.prepare(call, limit)


async def _completion(
    gateway: Gateway,
    principal: Principal,
    route: Route,
    model: ChatModel,
    call: ChatCall,
    prompt: Prompt,
    accepted: float,
) -> Completion:
    """Admits the request; what is returned must be closed."""
    assert principal.tenant is not None  # require_any saw to it
    outputs = [prompt.new_output() for _ in range(call.choices)]
    admitted = await gateway.admission.admit(
        principal,
        prompt_tokens=len(prompt.tokens),
        max_tokens=prompt.max_tokens * call.choices,
        model=route.model,
        deployment=route.deployment,
    )
    seed = call.seed if call.seed is not None else secrets.randbits(63)
    works = [
        Work(
            request_id=current_request_id() + (f".{index}" if index else ""),
            deployment=route.deployment,
            revision=route.revision,
            tokens=prompt.tokens,
            sampling=Sampling(
                temperature=prompt.temperature,
                top_p=prompt.top_p,
                top_k=call.top_k,
                min_p=call.min_p,
                seed=(seed + index) % 2**63,
                max_tokens=prompt.max_tokens,
                stop_token_ids=model.manifest.eos_token_ids,
                logprobs=call.logprobs,
            ),
            cache=CacheScope(salt=gateway.salt(principal.tenant)),
            deadline=accepted + gateway.limits.deadline_s,
        )
        for index in range(call.choices)
    ]
    return Completion(
        works,
        outputs,
        router=gateway.router,
        limits=gateway.limits,
        stats=gateway.stats,
        admitted=admitted,
        accepted=accepted,
        streaming=call.stream,
    )


async def _streamed(reply: ChatReply, completion: Completion) -> HttpResponseBase:
    """Headers go out with the first news (failures before it are real HTTP errors), or with the first keep-alive."""
    first = await completion.next(reply.keepalive_s)
    return _response(completion, stream_events(reply, completion, first), sse.CONTENT_TYPE)


async def _whole(reply: ChatReply, completion: Completion) -> HttpResponseBase:
    collector = Collector(reply, completion)
    while not await collector.advance(reply.keepalive_s):
        if collector.started:  # from here on blank lines keep the connection from being cut
            return _response(completion, late_body(reply, completion, collector), JSON)
    return HttpResponse(collector.body(), content_type=JSON)


def _response(completion: Completion, parts: AsyncIterator[bytes], content_type: str) -> StreamingHttpResponse:
    response = StreamingHttpResponse(OwnedStream(completion, parts), content_type=content_type)
    for name, value in sse.HEADERS.items():
        response[name] = value
    return response
