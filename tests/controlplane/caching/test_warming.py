"""Warming jobs: what a file may hold, how a job advances, and what becomes of one that is refused or cancelled."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.utils import timezone

from controlplane.accounts import selectors as accounts_read
from controlplane.accounts import services as accounts_write
from controlplane.accounts.permissions import SYSTEM, PermissionRefused, Role
from controlplane.caching import selectors, services, tickets, warming
from controlplane.caching.errors import WarmRefused
from controlplane.caching.models import WarmJob, WarmState
from controlplane.caching.prefixes import Prefix
from controlplane.caching.prompts import MAX_PROMPTS, parse
from tests.controlplane.accounts import factories as accounts
from tests.controlplane.caching import factories  # noqa: F401 - registers the apps' models
from tests.controlplane.fleet import factories as fleet

USER = {"role": "user", "content": "a"}
SYSTEM_TURN = {"role": "system", "content": "s"}


@pytest.mark.parametrize(
    ("line", "messages"),
    [
        ("a", [USER]),
        ('"a"', [USER]),
        ('{"prompt": "a"}', [USER]),
        ('{"messages": [{"role": "user", "content": "a"}]}', [USER]),
        ('[{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]', [SYSTEM_TURN, USER]),
    ],
)  # fmt: skip
def test_a_line_is_text_or_json(line: str, messages: list[dict[str, str]]) -> None:
    assert parse(f"\n{line}\n\n".encode()) == [messages]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no prompt"),
        (b"\xff\xfe", "not UTF-8"),
        (b"ok\n{broken", "line 2"),
        (b'{"other": 1}', "line 1"),
        (b'{"messages": [{"role": "cook", "content": "x"}]}', "role"),
        (b'{"messages": [{"role": "user", "content": ""}]}', "not empty"),
        (b"x\n" * (MAX_PROMPTS + 1), f"at most {MAX_PROMPTS}"),
    ],
)
def test_a_bad_file_is_refused_with_the_line(data: bytes, reason: str) -> None:
    with pytest.raises(WarmRefused, match=reason):
        parse(data)


class Gateway(BaseHTTPRequestHandler):
    """Answers like the inference API: every prompt has ten tokens, four of them hit; `bad` is refused."""

    seen: list[tuple[dict[str, Any], tickets.Ticket | None]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.seen.append((body, tickets.read(self.headers[tickets.HEADER])))
        refused = body["messages"][-1]["content"] == "bad"
        answer: dict[str, Any] = (
            {"error": {"message": "too long"}}
            if refused
            else {"usage": {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}}
        )
        self.send_response(400 if refused else 200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def gateway() -> Iterator[str]:
    Gateway.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def create(*contents: str, **changes: Any) -> WarmJob:
    fleet.deployment("chat")
    accounts.tenant("bistro")
    wanted: dict[str, Any] = {
        "actor": SYSTEM, "model": "chat", "tenant": "bistro", "retention_class": "agent",
        "prompts": [[{"role": "user", "content": content}] for content in contents],
    }  # fmt: skip
    return services.warm_create(**wanted | changes)


@pytest.mark.integration
@pytest.mark.django_db
@pytest.mark.usefixtures("empty_store")
class TestJobs:
    def test_every_prompt_is_sent_as_its_tenant_in_its_class(self, gateway: str) -> None:
        create("a", "bad", "b")
        job = services.warm_claim()
        assert job is not None
        done = services.warm_advance(job, url=gateway)
        assert (done.state, done.done, done.failed) == (WarmState.DONE, 2, 1)
        assert (done.prompt_tokens, done.hit_tokens) == (20, 8)
        assert "too long" in done.note
        assert done.prompts == []
        body, ticket = Gateway.seen[0]
        assert body == {"model": "chat", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        assert ticket == tickets.Ticket(job=done.pk, tenant="bistro", retention_class="agent")

    def test_a_slice_ends_and_another_process_goes_on(self, gateway: str) -> None:
        create("a", "b", "c")
        job = services.warm_claim()
        assert job is not None
        assert services.warm_claim() is None, "one at a time"
        paused = services.warm_advance(job, url=gateway, seconds=0.0)
        assert (paused.state, paused.done) == (WarmState.RUNNING, 0)
        again = services.warm_claim()
        assert again is not None
        assert services.warm_advance(again, url=gateway).done == 3

    def test_the_job_of_a_process_that_died_is_taken_over(self, gateway: str) -> None:
        create("a")
        job = services.warm_claim()
        assert job is not None
        WarmJob.objects.update(claimed_until=timezone.now() - timedelta(seconds=1))
        assert services.warm_claim() is not None

    def test_a_cancelled_job_stops(self, gateway: str) -> None:
        create("a", "b")
        job = services.warm_claim()
        assert job is not None

        def cancel(now: WarmJob) -> None:
            services.warm_cancel(actor=SYSTEM, job=now.pk)

        stopped = services.warm_advance(job, url=gateway, progress=cancel)
        assert WarmJob.objects.get(pk=stopped.pk).state == WarmState.CANCELLED
        assert services.warm_claim() is None

    def test_one_that_nothing_takes_has_failed(self) -> None:
        create("a")
        job = services.warm_claim()
        assert job is not None
        failed = services.warm_advance(job, url="http://127.0.0.1:1")
        assert (failed.state, failed.failed) == (WarmState.FAILED, 1)

    def test_a_tenant_that_is_deleted_is_warmed_no_more(self, gateway: str) -> None:
        create("a", "b")
        job = services.warm_claim()
        assert job is not None
        tenant = accounts_read.tenant_by_slug("bistro")
        assert tenant is not None
        accounts_write.tenant_delete(actor=SYSTEM, tenant=tenant)
        assert services.warm_advance(job, url=gateway).state == WarmState.CANCELLED
        assert Gateway.seen == []
        assert services.warm_claim() is None
        with pytest.raises(WarmRefused, match="no tenant"):
            services.warm_create(
                actor=SYSTEM, model="chat", tenant="bistro", retention_class="agent", prompts=[[USER]], start=False
            )

    def test_a_job_that_is_cancelled_while_it_pins_stays_cancelled(
        self, gateway: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create("a", pin="faq")
        job = services.warm_claim()
        assert job is not None

        def prefixes(**_: Any) -> Iterator[Prefix]:
            assert services.warm_claim() is None, "ours until it is pinned"
            services.warm_cancel(actor=SYSTEM, job=job.pk)
            yield Prefix(tip="00" * 16, blocks=1, tokens=64)

        monkeypatch.setattr(warming, "prefixes_of", prefixes)
        assert services.warm_advance(job, url=gateway).state == WarmState.CANCELLED
        assert selectors.current_policy().pins == ()

    def test_only_cache_administrators_may(self) -> None:
        with pytest.raises(PermissionRefused):
            create("a", actor=accounts.principal(Role.OPERATOR))
