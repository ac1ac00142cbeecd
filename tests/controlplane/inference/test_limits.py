"""What of the limits needs no services: who is limited, headers, the allowance of an outage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.accounts.limits import Limits
from controlplane.accounts.permissions import Scope
from controlplane.inference.admission_errors import refused
from controlplane.inference.limits_headers import duration, limit_headers, note_windows
from controlplane.inference.limits_local import LocalAllowance
from controlplane.inference.limits_subjects import Limited, Window, Windows, limited_subjects, tightest
from controlplane.metering import limit_scripts
from controlplane.metering.limit_scripts import CONCURRENCY, OK, REQUESTS, TOKENS
from tests.controlplane.accounts.factories import key_principal


def limited(key: Limits | None = None, tenant: Limits | None = None) -> tuple[Limited, ...]:
    principal = replace(
        key_principal(Scope.INFERENCE), limits=key or Limits(), tenant_limits=tenant or Limits(), root_key="7"
    )
    return limited_subjects(principal)


def test_keys_and_tenants_count_apart_and_only_where_they_are_limited() -> None:
    assert limited() == ()
    both = limited(Limits(requests_per_minute=1), Limits(budget_micro_usd=5))
    assert [one.subject.name for one in both] == ["k:7", "t:default"]
    assert [one.subject.budgeted for one in both] == [False, True]
    assert both[1].budget_nano == 5000


def test_headers_show_the_tightest_limit_in_both_dialects() -> None:
    both = limited(Limits(requests_per_minute=60), Limits(requests_per_minute=600, tokens_per_minute=6000))
    note_windows(tightest(both, [(30, -1), (20, 3000)]))
    openai = limit_headers("/v1/chat/completions")
    assert openai["x-ratelimit-limit-requests"] == "600"
    assert openai["x-ratelimit-remaining-requests"] == "20"
    assert openai["x-ratelimit-reset-tokens"] == "30s"
    assert not any(name.startswith("anthropic") for name in openai)
    anthropic = limit_headers("/v1/messages")
    assert anthropic["anthropic-ratelimit-tokens-remaining"] == "3000"
    assert anthropic["anthropic-ratelimit-requests-reset"].endswith("Z")
    note_windows(Windows())
    assert limit_headers("/v1/messages") == {}


@pytest.mark.parametrize(("seconds", "text"), [(0.012, "12ms"), (1.5, "1.5s"), (30, "30s"), (360, "6m0s")])
def test_durations_as_sdks_read_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_full_window_resets_at_once() -> None:
    assert Window(60, 60).reset_s == 0


def test_an_outage_takes_half_a_minutes_limits_among_all_gateways() -> None:
    who = limited(Limits(requests_per_minute=8, concurrent_requests=3))
    allowance = LocalAllowance(gateways=2)
    assert [allowance.take(who, tokens=1).code for _ in range(3)] == [OK, CONCURRENCY, CONCURRENCY]
    alone = LocalAllowance(gateways=1)
    assert [alone.take(who, tokens=1).code for _ in range(4)] == [OK, OK, OK, CONCURRENCY]
    alone.give_back(who)
    assert alone.take(who, tokens=1).code == OK
    assert alone.take(who, tokens=1).code == REQUESTS


def test_an_outage_says_whose_limit_and_which() -> None:
    both = limited(Limits(requests_per_minute=60), Limits(tokens_per_minute=100))
    taken = LocalAllowance(gateways=1).take(both, tokens=90)
    assert (taken.code, taken.at) == (TOKENS, both[1])
    assert taken.at is not None
    assert "100 tokens per min" in str(refused(taken.code, taken.at, retry_after_s=1.0))


@pytest.mark.parametrize(
    ("code", "status", "name"),
    [
        (limit_scripts.REQUESTS, 429, "rate_limit_exceeded"),
        (limit_scripts.TOKENS, 429, "rate_limit_exceeded"),
        (limit_scripts.CONCURRENCY, 429, "rate_limit_exceeded"),
        (limit_scripts.BUDGET, 402, "budget_exceeded"),
        (limit_scripts.BUDGET_UNKNOWN, 503, "budget_unavailable"),
    ],
)
def test_refusals(code: int, status: int, name: str) -> None:
    (one,) = limited(Limits(requests_per_minute=1))
    error = refused(code, one, retry_after_s=3.0)
    assert (error.status, error.detail.code) == (status, name)
    assert ("retry-after" in error.response()) == (status != 402)
