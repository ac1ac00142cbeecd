"""The gateway: HTTP through Django, WebSockets through Channels. Served by granian."""

from __future__ import annotations

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")

from django.core.asgi import get_asgi_application

_http = get_asgi_application()  # before anything imports models

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from granian.utils.proxies import wrap_asgi_with_proxy_headers

from controlplane.config import settings
from controlplane.inference.asgi import HttpApplication, Receive, Scope, Send, lifespan
from dashboard.routing import websocket_urlpatterns

_router = ProtocolTypeRouter(
    {
        "http": HttpApplication(_http),
        "lifespan": lifespan,
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)
_behind_proxies = wrap_asgi_with_proxy_headers(_router, trusted_hosts=settings().proxies)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """A coroutine function, by which ASGI tools know a single-callable application; granian's wrapper is not one."""
    await _behind_proxies(scope, receive, send)
