"""Whatever fits the API's description, and much that does not: no fault of the server, no answer that it leaves out."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from controlplane.inference.openapi import document
from tests.controlplane.inference.live import LiveGateway
from tests.controlplane.inference.stub_worker import Script

pytestmark = [pytest.mark.integration, pytest.mark.django_db]
EXAMPLES = 6


def described() -> Any:
    """The description with a model that is there, so that bodies are looked at beyond its name."""
    changed = document()
    for schema in changed["components"]["schemas"].values():
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {"const": "tiny"}
    return schemathesis.openapi.from_dict(changed)


schema = described()


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_nothing_breaks_the_server(case: Any, live: LiveGateway) -> None:
    live.stubs.script(Script(tokens=[300, 2]))
    response = case.call(base_url=live.url, headers=live.headers, timeout=30)
    case.validate_response(
        response,
        checks=[
            schemathesis.checks.not_a_server_error,
            schemathesis.specs.openapi.checks.status_code_conformance,
            schemathesis.specs.openapi.checks.content_type_conformance,
            schemathesis.specs.openapi.checks.response_schema_conformance,
        ],
    )
    assert response.headers["x-request-id"]


def test_the_description_is_served_without_a_key(live: LiveGateway) -> None:
    assert httpx.get(f"{live.url}/v1/openapi.json").json() == document()
