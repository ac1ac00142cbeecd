from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command

from controlplane.commands import CommandFailure
from controlplane.fleet import selectors, services
from controlplane.fleet.models import Pool
from tests.controlplane.fleet import factories

pytestmark = [pytest.mark.integration, pytest.mark.django_db]


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("fleet", *arguments, stdout=out)
    return out.getvalue()


def test_deploy_list_scale_stop() -> None:
    factories.node("n1")
    run("deploy", "chat", factories.model(), "--alias", "gpt-4", "--engine", '{"pool_blocks": 64}')
    services.reconcile()
    listed = run("list")
    assert "chat-prefill-0" in listed
    assert "waiting for the agent" in listed
    as_json = json.loads(run("list", "--json"))
    assert as_json["deployments"][0]["revision"]["spec"]["engine"]["pool_blocks"] == 64
    run("scale", "chat", "decode", "2")
    assert Pool.objects.get(role="decode").replicas == 2
    run("stop", "chat")
    services.reconcile()
    assert selectors.node_wanted("n1") == []


def test_a_node_is_stopped_and_resumed() -> None:
    factories.node("n1")
    run("stop", "--node", "n1")
    assert "stopped: manage.py fleet stop" in run("list")
    run("resume", "n1")
    assert "stopped" not in run("list")


@pytest.mark.parametrize(
    ("arguments", "explanation"),
    [
        (("deploy", "chat", "absent"), "models add"),
        (("deploy", "chat", factories.MODEL, "--engine", "{"), "--engine"),
        (("deploy", "two words", factories.MODEL), "valid"),
        (("scale", "no", "decode", "1"), "no deployment no"),
        (("stop", "no"), "no deployment no"),
        (("stop", "--node", "no"), "not registered"),
        (("confirm-loss", "because"), "nothing is frozen"),
    ],
)
def test_mistakes_are_explained(arguments: tuple[str, ...], explanation: str) -> None:
    factories.model()
    with pytest.raises(CommandFailure, match=explanation):
        run(*arguments)
