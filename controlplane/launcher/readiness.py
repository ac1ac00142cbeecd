"""Asks the gateway whether a token comes through end to end (`/readyz`), and what it still waits for."""

from __future__ import annotations

import http.client
import json

from controlplane.launcher.programs import reachable_host

_TIMEOUT_S = 10.0
"""The probe behind /readyz runs a request through both workers."""
_NOTHING_DEPLOYED = "nothing is deployed"
"""What /readyz says (`inference.health`) where no token can be waited for: the administrator wants no workers."""


class Readiness:
    def __init__(self, host: str, port: int) -> None:
        self._host = reachable_host(host)
        self._port = port
        self.detail = "starting"
        self.failing: list[str] = []

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def check(self) -> bool:
        """Whether a token came through some deployment, or none shall serve. Sets `detail` or `failing`."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", "/readyz")
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            self.detail = "the gateway is starting"
            return False
        finally:
            connection.close()
        routes = _routes(body)
        self.failing = [f"{name}: {reason}" for name, ready, reason in routes if not ready]
        if response.status == 200 or any(ready for _, ready, _ in routes):
            return True
        reason = _text(body, "reason")
        if reason == _NOTHING_DEPLOYED:
            self.failing = [reason]
            return True
        self.detail = "; ".join(self.failing) or reason or f"/readyz answers {response.status}"
        return False


def _routes(body: bytes) -> list[tuple[str, bool, str]]:
    """(deployment, ready, reason) of every deployment that shall serve."""
    try:
        content = json.loads(body)
        return [(route["deployment"], bool(route["ready"]), route["reason"]) for route in content["routes"]]
    except (ValueError, KeyError, TypeError):
        return []


def _text(body: bytes, name: str) -> str:
    try:
        content = json.loads(body)
    except ValueError:
        return ""
    return str(content.get(name, "")) if isinstance(content, dict) else ""
