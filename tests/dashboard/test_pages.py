"""What the overview, the playground and the error pages say when there is little to say."""

from __future__ import annotations

import pytest
from django.test import Client

from controlplane.accounts.permissions import Role
from tests.controlplane.accounts import factories as accounts
from tests.dashboard import factories

pytestmark = [pytest.mark.integration, pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(accounts.user(Role.OPERATOR))
    return client


def test_money_is_only_on_the_overview_of_who_may_see_it(client: Client) -> None:
    client.force_login(accounts.user(Role.OPERATOR))
    assert 'data-tile="money"' not in client.get("/").content.decode()
    client.force_login(accounts.user(Role.ADMINISTRATOR))
    assert 'data-tile="money"' in client.get("/").content.decode()


def test_every_chart_has_a_table(operator: Client) -> None:
    page = operator.get("/").content.decode()
    assert page.count("data-canvas") == page.count("data-legend") > 0


def test_the_playground_offers_what_is_deployed_and_says_what_is_not_ready(operator: Client) -> None:
    assert "No model to talk to" in operator.get("/playground").content.decode()
    deployment = factories.deployment()
    assert '<option value="smollm2">' in operator.get("/playground").content.decode()
    deployment.state, deployment.reason = "progressing", "2 workers are loading"
    deployment.save()
    page = operator.get("/playground").content.decode()
    assert "No model is ready" in page
    assert "2 workers are loading" in page


def test_a_page_that_is_not_there(operator: Client) -> None:
    answer = operator.get("/nowhere")
    assert answer.status_code == 404
    assert 'href="/workers"' in answer.content.decode()


def test_strangers_are_not_told_what_is_there() -> None:
    page = Client().get("/nowhere").content.decode()
    assert "Sign in" in page
    assert 'href="/workers"' not in page


@pytest.mark.parametrize(("cookie", "attribute"), [("dark", ' data-theme="dark"'), ("light", ' data-theme="light"')])
def test_the_chosen_theme_is_there_before_any_script(operator: Client, cookie: str, attribute: str) -> None:
    operator.cookies["galley_theme"] = cookie
    assert attribute in operator.get("/workers").content.decode()


def test_a_theme_that_is_none_is_the_systems(operator: Client) -> None:
    operator.cookies["galley_theme"] = '"><script>'
    page = operator.get("/workers").content.decode()
    assert "data-theme=" not in page
    assert '"><script>' not in page
