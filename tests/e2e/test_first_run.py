"""What `make up` leaves on a fresh machine."""

from __future__ import annotations

import stat

import httpx
import pytest

from tests.running import MODEL, System

pytestmark = pytest.mark.e2e


def test_the_first_run_file_is_complete_and_private(system: System) -> None:
    path = system.home / "first-run.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(system.first_run) == {"url", "admin_user", "admin_password", "api_key"}
    assert system.first_run["url"] == system.url


def test_the_secrets_were_printed_once(system: System) -> None:
    assert system.output.count(system.first_run["admin_password"]) == 1
    assert system.output.count(system.first_run["api_key"]) == 1
    assert f"Galley is ready: {system.url}" in system.output


def test_secrets_reach_no_log(system: System) -> None:
    for path in (system.home / "logs").rglob("*.log"):
        text = path.read_text(errors="replace")
        assert system.first_run["api_key"] not in text, path
        assert system.first_run["admin_password"] not in text, path


def test_the_key_lists_the_model_and_no_key_does_not(system: System) -> None:
    assert MODEL in {model.id for model in system.client().models.list()}
    assert httpx.get(f"{system.url}/v1/models").status_code == 401


def test_health_and_metrics(system: System) -> None:
    assert httpx.get(f"{system.url}/healthz").status_code == 200
    assert httpx.get(f"{system.url}/readyz", timeout=30).status_code == 200
    assert "vllm:num_requests_running" in system.get("/metrics").text
