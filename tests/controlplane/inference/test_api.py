"""The API on a live server: the official SDK, errors, disconnects, health."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from controlplane.config import home
from tests.controlplane.inference.live import LiveGateway, eventually
from tests.controlplane.inference.stub_worker import Script
from tests.reporting import Report
from workers.protocol import ErrorCode, Finish, Prefill, Role

pytestmark = [pytest.mark.integration, pytest.mark.django_db]
"""The server sees what the module's fixture committed; the tests write nothing."""

MESSAGES: list[Any] = [{"role": "user", "content": "Hello world"}]


@pytest.fixture
def client(live: LiveGateway) -> openai.OpenAI:
    return live.openai()


def text_tokens(live: LiveGateway, text: str) -> list[int]:
    from controlplane.inference.tokenization import load_tokenizer

    return load_tokenizer(home().models / "tiny-model").encode_foreign(text)


# --- replies -----------------------------------------------------------------------------------------------------


def test_a_whole_reply(live: LiveGateway, client: openai.OpenAI) -> None:
    tokens = [*text_tokens(live, "Hello 🎉 world"), 2]
    live.stubs.script(Script(tokens=tokens, hit_tokens=4))
    reply = client.chat.completions.create(model="tiny", messages=MESSAGES, seed=7)
    assert reply.object == "chat.completion"
    assert reply.choices[0].message.content == "Hello 🎉 world"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.system_fingerprint
    assert reply.usage is not None
    assert reply.usage.completion_tokens == len(tokens)
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + len(tokens)
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 4
    extra = reply.usage.model_extra or {}
    assert extra["prompt_cache_hit_tokens"] + extra["prompt_cache_miss_tokens"] == reply.usage.prompt_tokens


def test_a_streamed_reply_with_usage(live: LiveGateway, client: openai.OpenAI) -> None:
    live.stubs.script(Script(tokens=[*text_tokens(live, "The kitchen opens"), 2]))
    chunks = list(
        client.chat.completions.create(
            model="small", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    )
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "The kitchen opens"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_the_wire_format_of_a_stream(live: LiveGateway) -> None:
    live.stubs.script(Script(tokens=[*text_tokens(live, "Hi"), 2]))
    response = live.post({"model": "tiny-model", "messages": MESSAGES, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-request-id"].startswith("req_")
    events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    assert all("usage" not in json.loads(event) for event in events[:-1])


def test_a_stop_string_ends_the_text_and_the_work(live: LiveGateway, client: openai.OpenAI) -> None:
    decode = live.stubs.worker(Role.DECODE)
    tokens = text_tokens(live, "one END") + [300] * 500
    live.stubs.script(Script(tokens=tokens, delay_s=0.01))
    reply = client.chat.completions.create(model="tiny", messages=MESSAGES, stop=["END"])
    assert reply.choices[0].message.content == "one "
    assert reply.choices[0].finish_reason == "stop"
    eventually(lambda: not [r for r in decode.running if not r.startswith("probe")])


def test_max_tokens_and_length(live: LiveGateway, client: openai.OpenAI) -> None:
    live.stubs.script(Script(tokens=text_tokens(live, "The kitchen opens at noon")))
    reply = client.chat.completions.create(model="tiny", messages=MESSAGES, max_completion_tokens=2)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 2


def test_insufficient_system_resource(live: LiveGateway) -> None:
    live.stubs.script(Script(tokens=[300, 301], finish=Finish.INSUFFICIENT_SYSTEM_RESOURCE))
    choice = live.post({"model": "tiny", "messages": MESSAGES}).json()["choices"][0]
    assert choice["finish_reason"] == "insufficient_system_resource"


def test_several_choices(live: LiveGateway, client: openai.OpenAI) -> None:
    live.stubs.script(Script(tokens=[*text_tokens(live, "one"), 2]), Script(tokens=[*text_tokens(live, "two"), 2]))
    reply = client.chat.completions.create(model="tiny", messages=MESSAGES, n=2, seed=1)
    assert sorted(choice.message.content or "" for choice in reply.choices) == ["one", "two"]
    assert [choice.index for choice in reply.choices] == [0, 1]
    frames = [f for f in live.stubs.worker(Role.PREFILL).received if isinstance(f, Prefill)][-2:]
    assert [frame.sampling.seed for frame in frames] == [1, 2]
    live.stubs.script(Script(tokens=[*text_tokens(live, "one"), 2]))
    stream = client.chat.completions.create(model="tiny", messages=MESSAGES, n=2, stream=True)
    texts = {0: "", 1: ""}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: "one", 1: "one"}


def test_logprobs(live: LiveGateway, client: openai.OpenAI) -> None:
    tokens = [*text_tokens(live, "Hi"), 2]
    live.stubs.script(Script(tokens=tokens))
    reply = client.chat.completions.create(model="tiny", messages=MESSAGES, logprobs=True, top_logprobs=1)
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == len(tokens)
    assert bytes(b for item in logprobs.content[:-1] for b in item.bytes or []).decode() == "Hi"
    assert all(len(item.top_logprobs) == 1 for item in logprobs.content)


def test_sampling_reaches_the_workers(live: LiveGateway, client: openai.OpenAI) -> None:
    live.stubs.script(Script(tokens=[300, 2]))
    client.chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=0.5, top_p=0.9, seed=11, extra_body={"top_k": 5, "min_p": 0.1}
    )
    frame = [f for f in live.stubs.worker(Role.PREFILL).received if isinstance(f, Prefill)][-1]
    sampling = frame.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.1)
    assert (sampling.seed, sampling.stop_token_ids) == (11, (2, 0))
    assert len(frame.cache.salt) == 16


# --- models ------------------------------------------------------------------------------------------------------


def test_models(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"tiny", "small", "tiny-model"}
    assert client.models.retrieve("small").id == "small"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gone")
    assert caught.value.code == "model_not_found"


# --- errors ------------------------------------------------------------------------------------------------------


def test_keys_are_required(live: LiveGateway) -> None:
    for headers in ({}, {"authorization": "Bearer gk-wrong"}, {"x-api-key": "nonsense"}, {"cookie": "sessionid=x"}):
        response = httpx.post(f"{live.url}/v1/chat/completions", json={}, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["type"] == "authentication_error"
        assert "gk-wrong" not in response.text
        assert response.headers["x-request-id"]


def test_x_api_key_is_accepted(live: LiveGateway) -> None:
    assert httpx.get(f"{live.url}/v1/models", headers={"x-api-key": live.key}).status_code == 200


def test_errors_as_the_sdk_sees_them(live: LiveGateway, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-0", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "x1" * 5000}])
    assert long.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.QUEUE_FULL, 503),
        (ErrorCode.INTERNAL, 500),
        (ErrorCode.DEADLINE, 504),
        (ErrorCode.CONTEXT_LENGTH, 400),
        (ErrorCode.INVALID, 400),
        (ErrorCode.TRANSFER, 503),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_worker_failures_before_the_first_byte(live: LiveGateway, code: ErrorCode, status: int, stream: bool) -> None:
    live.stubs.script(Script(fail=code))
    response = live.post({"model": "tiny", "messages": MESSAGES, "stream": stream})
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert ("retry-after" in response.headers) == (status == 503)


def test_bodies_that_are_none(live: LiveGateway) -> None:
    url = f"{live.url}/v1/chat/completions"
    for body in (b"{", b"[" * 50_000, b'{"model": "\xff"}'):
        response = httpx.post(url, content=body, headers=live.headers)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


def test_a_giant_body_is_refused_while_it_comes(live: LiveGateway) -> None:
    def forever() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 1_000_000

    try:
        response = httpx.post(f"{live.url}/v1/chat/completions", content=forever(), headers=live.headers, timeout=30)
        assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
    except httpx.WriteError:
        pass  # the server closed before all was sent, as it should


def test_unknown_paths_and_methods(live: LiveGateway) -> None:
    missing = httpx.get(f"{live.url}/v1/nothing", headers=live.headers)
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    wrong = httpx.get(f"{live.url}/v1/chat/completions", headers=live.headers)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


def test_a_foreign_host_header_is_refused(live: LiveGateway) -> None:
    response = httpx.get(f"{live.url}/v1/models", headers={**live.headers, "host": "evil.example"})
    assert response.status_code == 400


def test_a_key_without_the_scope(live: LiveGateway) -> None:
    headers = {"authorization": f"Bearer {live.models_key}"}
    assert httpx.get(f"{live.url}/v1/models", headers=headers).status_code == 200
    response = httpx.post(f"{live.url}/v1/chat/completions", headers=headers, json={})
    assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")


# --- signed-in users ---------------------------------------------------------------------------------------------

CSRF = "a" * 32


def as_user(live: LiveGateway, role: str, **headers: str) -> httpx.Response:
    return httpx.post(
        f"{live.url}/v1/chat/completions",
        json={"model": "tiny", "messages": MESSAGES},
        headers=headers,
        cookies={"sessionid": live.sessions[role], "csrftoken": CSRF},
    )


def test_a_signed_in_operator_may_chat_with_the_csrf_header(live: LiveGateway) -> None:
    live.stubs.script(Script(tokens=[*text_tokens(live, "Hi"), 2]))
    response = as_user(live, "operator", **{"x-csrftoken": CSRF})
    assert response.json()["choices"][0]["message"]["content"] == "Hi"


def test_without_the_csrf_header_a_session_is_refused(live: LiveGateway) -> None:
    for headers in ({}, {"x-csrftoken": "b" * 32}, {"x-csrftoken": CSRF, "origin": "http://evil.example"}):
        response = as_user(live, "operator", **headers)
        assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")


def test_a_viewer_may_look_but_not_chat(live: LiveGateway) -> None:
    assert as_user(live, "viewer", **{"x-csrftoken": CSRF}).status_code == 403
    cookies = {"sessionid": live.sessions["viewer"]}
    assert httpx.get(f"{live.url}/v1/models", cookies=cookies).status_code == 200


# --- streams that do not end well --------------------------------------------------------------------------------


def test_a_decode_worker_killed_in_mid_stream(live: LiveGateway, client: openai.OpenAI) -> None:
    live.stubs.script(Script(tokens=[300] * 50, delay_s=0.02, die_before=5), Script(tokens=[300, 2]))
    stream = client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
    chunks: list[Any] = []
    with pytest.raises(openai.APIError, match="worker was lost"):
        chunks.extend(chunk for chunk in stream)
    live.stubs.call(live.stubs.worker(Role.DECODE).restart())
    live.wait_ready()
    assert client.chat.completions.create(model="tiny", messages=MESSAGES).choices


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hang_before", [0, 1, 3])
def test_a_client_that_leaves_cancels_both_workers(
    live: LiveGateway, stream: bool, hang_before: int, report: Report
) -> None:
    prefill, decode = live.stubs.worker(Role.PREFILL), live.stubs.worker(Role.DECODE)
    live.stubs.script(Script(tokens=[300] * 100, delay_s=0.02, hang_before=hang_before))
    seen = len(prefill.received)
    body = json.dumps({"model": "tiny", "messages": MESSAGES, "stream": stream}).encode()
    with socket.create_connection(("127.0.0.1", live.port)) as raw:
        raw.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            + f"authorization: Bearer {live.key}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )

        def ours() -> list[str]:
            frames = prefill.received[seen:]
            return [f.request_id for f in frames if isinstance(f, Prefill) and not f.request_id.startswith("probe")]

        eventually(lambda: bool(ours()))
        request_id = ours()[0]
        time.sleep(0.3)
    left = time.monotonic()
    eventually(lambda: request_id in prefill.cancelled() and request_id in decode.cancelled())
    report(f"both workers cancelled {time.monotonic() - left:.2f} s after the client left (asked for: a second)")


def test_a_retry_is_invisible(live: LiveGateway, client: openai.OpenAI) -> None:
    """There is one pair: what is retryable comes back as 503, which the SDK retries by itself."""
    live.stubs.script(Script(fail=ErrorCode.TRANSFER), Script(tokens=[*text_tokens(live, "ok"), 2]))
    reply = live.openai(max_retries=2).chat.completions.create(model="tiny", messages=MESSAGES)
    assert reply.choices[0].message.content == "ok"


# --- health ------------------------------------------------------------------------------------------------------


def test_health(live: LiveGateway) -> None:
    assert httpx.get(f"{live.url}/healthz").json() == {"status": "ok"}
    ready = httpx.get(f"{live.url}/readyz")
    assert ready.status_code == 200
    assert ready.json()["routes"][0]["deployment"] == "tiny"


def test_not_ready_without_a_decode_worker(live: LiveGateway) -> None:
    decode = live.stubs.worker(Role.DECODE)
    live.stubs.call(decode.stop())
    eventually(lambda: httpx.get(f"{live.url}/readyz").status_code == 503)
    assert "tiny-decode-0" in httpx.get(f"{live.url}/readyz").json()["routes"][0]["reason"]
    threading.Timer(1.0, lambda: live.stubs.call(decode.restart())).start()
    assert live.post({"model": "tiny", "messages": MESSAGES}).status_code == 200, "held until the worker is back"
    live.wait_ready()


def test_the_gateway_speaks_of_itself_each_second(live: LiveGateway, services: dict[str, str]) -> None:
    import redis

    from workers import snapshots

    assert live.post({"model": "tiny", "messages": MESSAGES}).status_code == 200
    with redis.Redis.from_url(services["REDIS_URL"]) as valkey, valkey.pubsub() as pubsub:
        pubsub.subscribe(snapshots.CHANNEL)
        until = time.monotonic() + 10
        while time.monotonic() < until:
            message = pubsub.get_message(ignore_subscribe_messages=True, timeout=1.0)
            if message:
                snapshot = snapshots.decode(message["data"])
                assert isinstance(snapshot, snapshots.GatewaySnapshot)
                if sum(snapshot.ttft_s.counts) > 0 and snapshot.running == 0:
                    assert snapshot.waiting == 0
                    assert sum(snapshot.requests.values()) > 0
                    assert sum(snapshot.decode_s.counts) == sum(snapshot.ttft_s.counts)
                    return
    raise AssertionError("no snapshot came")


def test_no_key_ever_reaches_the_log(live: LiveGateway) -> None:
    assert live.post({"model": "tiny", "messages": MESSAGES}).status_code == 200
    assert live.key not in live.log.read_text()


# --- retention ---------------------------------------------------------------------------------------------------


def test_a_request_is_assigned_to_a_class_and_warming_names_its_own(live: LiveGateway) -> None:
    from controlplane.caching import tickets

    def sent(**headers: str) -> tuple[int, Prefill]:
        answer = live.post(body, **headers)
        return answer.status_code, [f for f in live.stubs.worker(Role.PREFILL).received if isinstance(f, Prefill)][-1]

    body: dict[str, Any] = {"model": "tiny", "messages": MESSAGES}
    assert sent()[1].cache.retention_class == "chat"
    body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    assert sent()[1].cache.retention_class == "agent"
    del body["tools"]
    ticket = tickets.Ticket(job=1, tenant="live", retention_class="batch")
    status, frame = sent(authorization="", **{tickets.HEADER: tickets.issue(ticket)})
    assert (status, frame.cache.retention_class) == (200, "batch")
    assert sent(**{tickets.HEADER: "forged"})[0] == 401
