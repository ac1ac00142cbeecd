from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from asgiref.sync import sync_to_async
from django.contrib.auth import aauthenticate, authenticate
from django.db import connections
from django.test import RequestFactory

from controlplane import valkey
from controlplane.accounts.models import User
from controlplane.accounts.throttle import FAILURES_PER_ACCOUNT, FAILURES_PER_ADDRESS, LoginThrottle
from controlplane.audit.models import AuditEvent
from tests.controlplane.accounts import factories

PASSWORD = "correct-horse-battery"


def away() -> LoginThrottle:
    return LoginThrottle(valkey.client("redis://127.0.0.1:1/0"))


@pytest.fixture
def throttle(valkey_url: str) -> LoginThrottle:
    return LoginThrottle(redis.Redis.from_url(valkey_url))


@pytest.mark.integration
def test_failures_of_one_user_from_one_address_add_up(throttle: LoginThrottle) -> None:
    for _ in range(FAILURES_PER_ACCOUNT):
        assert throttle.wait_s("ada", "10.0.0.1") == 0
        assert throttle.begin("ADA", "10.0.0.1") == 0
    assert throttle.begin("ada", "10.0.0.1") > 0
    assert throttle.wait_s("ada", "10.0.0.1") > 0
    assert throttle.wait_s("ada", "10.0.0.2") == 0
    assert throttle.wait_s("bob", "10.0.0.1") == 0


@pytest.mark.integration
def test_many_names_from_one_address_add_up_too(throttle: LoginThrottle) -> None:
    for number in range(FAILURES_PER_ADDRESS):
        throttle.begin(f"user-{number}", "10.0.0.1")
    assert throttle.wait_s("new", "10.0.0.1") > 0
    assert throttle.wait_s("new", "10.0.0.2") == 0


@pytest.mark.integration
def test_a_success_forgives(throttle: LoginThrottle) -> None:
    for _ in range(FAILURES_PER_ACCOUNT):
        throttle.begin("ada", "a")
    throttle.succeeded("ada", "a")
    assert throttle.wait_s("ada", "a") == 0


@pytest.mark.integration
def test_attempts_at_once_do_not_slip_through_together(throttle: LoginThrottle) -> None:
    with ThreadPoolExecutor(16) as pool:
        waits = list(pool.map(lambda _: throttle.begin("ada", "a"), range(64)))
    assert waits.count(0.0) == FAILURES_PER_ACCOUNT


@pytest.mark.integration
def test_what_succeeds_or_gets_no_answer_does_not_count_against_the_address(throttle: LoginThrottle) -> None:
    for number in range(FAILURES_PER_ADDRESS):
        assert throttle.begin(f"user-{number}", "a") == 0
        end = throttle.succeeded if number % 2 else throttle.withdrawn
        end(f"user-{number}", "a")
    assert throttle.begin("ada", "a") == 0


@pytest.mark.integration
def test_two_processes_count_together(throttle: LoginThrottle, valkey_url: str) -> None:
    other = LoginThrottle(redis.Redis.from_url(valkey_url))
    for _ in range(FAILURES_PER_ACCOUNT):
        other.begin("ada", "a")
    assert throttle.wait_s("ada", "a") > 0


def test_without_valkey_the_process_counts_alone() -> None:
    throttle = away()
    for _ in range(FAILURES_PER_ACCOUNT):
        throttle.begin("ada", "a")
    assert throttle.wait_s("ada", "a") > 0
    assert throttle.wait_s("bob", "a") == 0
    throttle.succeeded("ada", "a")
    assert throttle.wait_s("ada", "a") == 0


@pytest.mark.integration
@pytest.mark.django_db
def test_signing_in_is_throttled_and_told(valkey_url: str) -> None:
    user = factories.user(password=PASSWORD)
    request = RequestFactory().post("/login", REMOTE_ADDR="10.1.1.1")
    assert authenticate(request, username=user.username, password=PASSWORD) == user
    event = AuditEvent.objects.get(action="user.sign_in")
    assert event.after == {"address": "10.1.1.1"}
    for _ in range(FAILURES_PER_ACCOUNT):
        assert authenticate(request, username=user.username, password="wrong") is None
    assert authenticate(request, username=user.username, password=PASSWORD) is None


@pytest.mark.integration
@pytest.mark.django_db(transaction=True)
async def test_signing_in_from_an_event_loop(valkey_url: str) -> None:
    user = await User.objects.acreate(username="ada")
    user.set_password(PASSWORD)
    await user.asave()
    try:
        assert await aauthenticate(None, username="ada", password=PASSWORD) == user
    finally:
        await sync_to_async(connections.close_all)()
