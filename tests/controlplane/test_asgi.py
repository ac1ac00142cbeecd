"""The gateway behind a proxy: whose word on client and scheme is taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

PROBE = """
import asyncio, json
from controlplane import asgi
from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from controlplane.accounts.backends import client_address
from io import BytesIO

seen = []
async def http(scope, receive, send):
    request = ASGIRequest(scope, BytesIO())
    seen.append({"address": client_address(request), "secure": request.is_secure()})
asgi._router.application_mapping["http"] = http

def scope(client, forwarded):
    headers = [(b"host", b"galley.example.org"), (b"x-forwarded-proto", b"https"), (b"x-forwarded-for", forwarded)]
    return {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers, "scheme": "http",
            "client": (client, 1234), "server": ("127.0.0.1", 8000)}

async def main():
    for client, forwarded in (("10.0.0.7", b"198.51.100.9"), ("10.0.0.7", b"6.6.6.6, 198.51.100.9, 10.0.0.8"),
                              ("203.0.113.5", b"127.0.0.1")):
        await asgi.application(scope(client, forwarded), None, None)
asyncio.run(main())
print(json.dumps({"seen": seen, "secure": [settings.SESSION_COOKIE_SECURE, settings.CSRF_COOKIE_SECURE],
                  "origins": settings.CSRF_TRUSTED_ORIGINS, "hosts": settings.ALLOWED_HOSTS}))
"""


def probe(**extra: str) -> dict[str, object]:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "controlplane.settings", **extra}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


@pytest.mark.timeout(240)
def test_a_trusted_proxy_is_believed_and_nobody_else() -> None:
    answer = probe(GALLEY_PUBLIC_URL="https://galley.example.org", GALLEY_TRUSTED_PROXIES="10.0.0.0/8")
    assert answer["seen"] == [
        {"address": "198.51.100.9", "secure": True},
        {"address": "198.51.100.9", "secure": True},  # what the client claimed itself stands further left
        {"address": "203.0.113.5", "secure": False},
    ]
    assert answer["secure"] == [True, True]
    assert answer["origins"] == ["https://galley.example.org"]
    assert "galley.example.org" in answer["hosts"]  # type: ignore[operator]


@pytest.mark.timeout(240)
def test_without_proxies_headers_mean_nothing() -> None:
    answer = probe()
    assert answer["seen"] == [
        {"address": "10.0.0.7", "secure": False},
        {"address": "10.0.0.7", "secure": False},
        {"address": "203.0.113.5", "secure": False},
    ]
    assert answer["secure"] == [False, False]
