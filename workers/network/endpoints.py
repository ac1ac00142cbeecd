"""Where a worker is reached: `unix:/path/to.sock` or `tcp:host:port`."""

from __future__ import annotations

import hashlib
import ipaddress
from functools import cache
from pathlib import Path
from typing import Any

from workers.protocol import Endpoint

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def parse_endpoint(endpoint: str) -> tuple[str, Any]:
    """("unix", path) or ("tcp", (host, port)). Raises ValueError."""
    scheme, _, rest = endpoint.partition(":")
    if scheme == "unix" and rest:
        return "unix", rest
    if scheme == "tcp":
        host, _, port = rest.rpartition(":")
        if host and port.isdecimal() and int(port) <= 65535:
            return "tcp", (host.strip("[]"), int(port))
    raise ValueError(f"{endpoint!r} is no endpoint: unix:/path or tcp:host:port")


def tcp_endpoint(host: str, port: int) -> Endpoint:
    """`tcp:host:port`, IPv6 addresses in brackets."""
    return Endpoint(f"tcp:[{host}]:{port}" if ":" in host else f"tcp:{host}:{port}")


def is_loopback(host: str) -> bool:
    """Whether packets to `host` stay on this machine. A name other than `localhost` may be anything: False."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether binding `host` binds every address of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


@cache
def host_id() -> str:
    """The same for all processes of one running machine, its containers included; empty where nobody can say."""
    try:
        return hashlib.sha256(_BOOT_ID.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""
