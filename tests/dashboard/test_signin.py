from __future__ import annotations

import pytest
from django.test import Client

from controlplane.accounts import services
from controlplane.accounts.models import User
from controlplane.accounts.permissions import SYSTEM, Role
from controlplane.accounts.throttle import FAILURES_PER_ACCOUNT
from tests.dashboard.factories import PASSWORD

pytestmark = [pytest.mark.integration, pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]


@pytest.fixture
def ada() -> User:
    user, _ = services.user_create(actor=SYSTEM, username="ada", password=PASSWORD)
    services.membership_grant(actor=SYSTEM, user=user, role=Role.VIEWER, tenant=None)
    return user


def sign_in(client: Client, password: str = PASSWORD, **fields: str):  # type: ignore[no-untyped-def]
    return client.post("/login", {"username": "ada", "password": password, **fields})


def test_signing_in_goes_where_the_reader_wanted(client: Client, ada: User) -> None:
    answer = sign_in(client, next="/workers")
    assert (answer.status_code, answer["Location"]) == (302, "/workers")
    assert client.get("/workers").status_code == 200


@pytest.mark.parametrize("elsewhere", ["https://elsewhere.example/", "//elsewhere.example", "javascript:alert(1)"])
def test_it_never_leads_to_another_host(client: Client, ada: User, elsewhere: str) -> None:
    assert sign_in(client, next=elsewhere)["Location"] == "/"


def test_a_wrong_password_says_so_and_not_who_exists(client: Client, ada: User) -> None:
    wrong = sign_in(client, "not-the-password")
    unknown = client.post("/login", {"username": "nobody", "password": "not-the-password"})
    assert wrong.status_code == unknown.status_code == 422
    assert "do not match" in wrong.content.decode()
    assert "do not match" in unknown.content.decode()
    assert "not-the-password" not in wrong.content.decode()


def test_too_many_failures_are_refused_with_the_time_to_wait(client: Client, ada: User) -> None:
    answers = [sign_in(client, "not-the-password").status_code for _ in range(FAILURES_PER_ACCOUNT)]
    assert answers == [422] * FAILURES_PER_ACCOUNT
    refused = sign_in(client)
    assert refused.status_code == 429
    assert int(refused["Retry-After"]) > 0
    assert "Too many attempts" in refused.content.decode()


def test_signing_out_needs_a_post_and_ends_the_session(client: Client, ada: User) -> None:
    sign_in(client)
    assert client.get("/logout").status_code == 405
    assert client.post("/logout")["Location"] == "/login"
    assert client.get("/workers").status_code == 302


def test_a_forged_form_is_told_that_the_page_expired(ada: User) -> None:
    client = Client(enforce_csrf_checks=True)
    answer = sign_in(client)
    assert answer.status_code == 403
    assert "expired" in answer.content.decode()
