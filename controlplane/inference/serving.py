"""The way of a generating request through the gateway, the same for every protocol."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from controlplane.accounts.permissions import Action, Principal
from controlplane.inference import sse
from controlplane.inference.authentication import principal_of, require_any
from controlplane.inference.catalog import Route, Unavailable
from controlplane.inference.completion import DISCONNECTED, Completion
from controlplane.inference.conversation import ChatModel, Prompt
from controlplane.inference.errors import ApiError, model_not_found, overloaded, too_large
from controlplane.inference.limits import GatewayLimits
from controlplane.inference.replies.base import Reply, ReplyFormat
from controlplane.inference.requests import Work
from controlplane.inference.runtime import Gateway, current
from controlplane.inference.schema.call import Call
from controlplane.inference.streaming import Collector, OwnedStream, first_news, late_body, stream_events
from controlplane.middleware import current_request_id
from workers.protocol import CacheScope, Sampling

JSON = "application/json"

Parse = Callable[[bytes, GatewayLimits], Call]


@dataclass(frozen=True, slots=True)
class Served:
    """A request that was let in and understood; nothing of it has been sent to workers."""

    gateway: Gateway
    principal: Principal
    route: Route
    model: ChatModel
    call: Call
    retention_class: str

    @property
    def context_limit(self) -> int:
        own = self.model.manifest.max_context
        return min(own, self.route.max_context or own)


async def accept(request: HttpRequest, parse: Parse) -> Served:
    """Who asks, for what, of which model. Raises ApiError."""
    principal = await principal_of(request)
    require_any(principal, Action.INFERENCE_USE)
    gateway = await current()
    call = parse(_body(request, gateway), gateway.limits)
    route, model = _find(gateway, call.model)
    retention = gateway.assignment.classify(principal, request.headers, tools=bool(call.body.get("tools")))
    return Served(gateway, principal, route, model, call, retention)


async def generate(request: HttpRequest, parse: Parse, new_format: Callable[[Reply], ReplyFormat]) -> HttpResponseBase:
    """Answers `request`. Raises ApiError for what fails before the first byte."""
    accepted: float = request.accepted_at  # type: ignore[attr-defined]
    served = await accept(request, parse)
    prompts = await _prepare(served)
    completion = await _completion(served, prompts, accepted)
    reply = Reply(
        id=current_request_id().removeprefix("req_"),
        created=int(time.time()),
        call=served.call,
        tokenizer=served.model.tokenizer,
        thinking=prompts[0].thinking,
        keepalive_s=served.gateway.limits.keepalive_s,
        prompt_texts=tuple(_text(served.model, prompt) for prompt in prompts) if served.call.echo else (),
    )
    form = new_format(reply)
    try:
        completion.start()
        return await (_streamed(reply, form, completion) if served.call.stream else _whole(reply, form, completion))
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


async def _prepare(served: Served) -> list[Prompt]:
    """On a thread where tokenizing takes long, or a grammar is to be compiled. Raises ApiError."""
    served.gateway.admission.require_room()
    call, model, limit = served.call, served.model, served.context_limit
    grammar = any(name in call.body for name in ("tools", "response_format", "text")) or call.answer_schema is not None
    if grammar or call.characters > served.gateway.limits.thread_encode_chars:
        return await served.gateway.preparation.run(served.principal, lambda: model.prepare(call, limit))
    return model.prepare(call, limit)


async def count_tokens(served: Served) -> int:
    """Raises ApiError."""
    gateway, call, model = served.gateway, served.call, served.model
    if call.characters > gateway.limits.thread_encode_chars:
        return await gateway.preparation.run(served.principal, lambda: model.count_tokens(call))
    return model.count_tokens(call)


async def _completion(served: Served, prompts: list[Prompt], accepted: float) -> Completion:
    """Admits the request; what is returned must be closed."""
    gateway, principal, call = served.gateway, served.principal, served.call
    assert principal.tenant is not None  # require_any saw to it
    outputs = [prompt.new_output for prompt in prompts for _ in range(call.choices)]
    admitted = await gateway.admission.admit(
        principal,
        prompt_tokens=sum(len(prompt.tokens) for prompt in prompts),
        max_tokens=sum(prompt.max_tokens for prompt in prompts) * call.choices,
        model=served.route.model,
        deployment=served.route.deployment,
    )
    seed = call.seed if call.seed is not None else secrets.randbits(63)
    cache = CacheScope(salt=gateway.salt(principal.tenant), retention_class=served.retention_class)
    works = [
        Work(
            request_id=current_request_id() + (f".{index}" if index else ""),
            deployment=served.route.deployment,
            revision=served.route.revision,
            tokens=prompt.tokens,
            sampling=_sampling(served, prompt, (seed + index) % 2**63),
            cache=cache,
            deadline=accepted + gateway.limits.deadline_s,
        )
        for index, prompt in enumerate(prompt for prompt in prompts for _ in range(call.choices))
    ]
    return Completion(
        works,
        outputs,
        choices=call.choices,
        router=gateway.router,
        limits=gateway.limits,
        stats=gateway.stats,
        admitted=admitted,
        accepted=accepted,
        streaming=call.stream,
    )


def _sampling(served: Served, prompt: Prompt, seed: int) -> Sampling:
    call = served.call
    return Sampling(
        temperature=prompt.temperature,
        top_p=prompt.top_p,
        top_k=call.top_k,
        min_p=call.min_p,
        seed=seed,
        max_tokens=prompt.max_tokens,
        stop_token_ids=served.model.manifest.eos_token_ids,
        logprobs=call.logprobs,
        logit_bias=call.logit_bias,
        presence_penalty=call.presence_penalty,
        frequency_penalty=call.frequency_penalty,
        grammar=prompt.grammar,
    )


def _text(model: ChatModel, prompt: Prompt) -> str:
    return b"".join(model.tokenizer.token_bytes[token] for token in prompt.tokens).decode(errors="replace")


async def _streamed(reply: Reply, form: ReplyFormat, completion: Completion) -> HttpResponseBase:
    """Headers go out with the first news (failures before it are real HTTP errors), or with the first keep-alive."""
    first = await first_news(completion, reply.keepalive_s)
    return _response(completion, stream_events(reply, form, completion, first), sse.CONTENT_TYPE)


async def _whole(reply: Reply, form: ReplyFormat, completion: Completion) -> HttpResponseBase:
    collector = Collector(form, completion, completion.choices)
    while not await collector.advance(reply.keepalive_s):
        if collector.started:  # from here on blank lines keep the connection from being cut
            return _response(completion, late_body(reply, completion, collector), JSON)
    return HttpResponse(collector.body(), content_type=JSON)


def _response(completion: Completion, parts: AsyncIterator[bytes], content_type: str) -> StreamingHttpResponse:
    response = StreamingHttpResponse(OwnedStream(completion, parts), content_type=content_type)
    for name, value in sse.HEADERS.items():
        response[name] = value
    return response
