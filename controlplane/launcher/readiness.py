"""Asks the gateway whether a token comes through end to end (`/readyz`), and what it still waits for."""

from __future__ import annotations

import http.client
import json

from controlplane.launcher.programs import reachable_host

_TIMEOUT_S = 10.0
"""The probe behind /readyz runs a request through both workers."""


class Readiness:
    def __init__(self, host: str, port: int) -> None:
        self._host = reachable_host(host)
        self._port = port
        self.detail = "starting"

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def check(self) -> bool:
        """Whether it is ready; sets `detail` where it is not."""
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
        if response.status == 200:
            return True
        self.detail = _reason(body) or f"/readyz answers {response.status}"
        return False


def _reason(body: bytes) -> str:
    try:
        content = json.loads(body)
    except ValueError:
        return ""
    return str(content.get("reason", "")) if isinstance(content, dict) else ""
