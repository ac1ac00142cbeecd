"""TCP with blocking sockets, for the threads that move blocks: every call has a deadline (monotonic seconds).

A call that makes progress is ended at its deadline, one that stands still at twice the time it had, at the latest.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Sequence

from workers.network.endpoints import parse_endpoint
from workers.network.handshake import Binding, Exchange, Purpose, as_client, as_server
from workers.network.security import LinkSecurity
from workers.network.tls import Contexts, peer_certificate

_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_UNACKNOWLEDGED_MS = 20_000


def tune(connection: socket.socket) -> None:
    """TCP only: send small frames at once, and notice a host that vanished."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)


def connect(endpoint: str, security: LinkSecurity, contexts: Contexts, purpose: Purpose, until: float) -> socket.socket:
    """A connection to a `tcp:` endpoint that proved what the settings ask for. Raises OSError, ValueError."""
    scheme, address = parse_endpoint(endpoint)
    if scheme != "tcp":
        raise ValueError(f"{endpoint} is no TCP endpoint")
    security.check(address[0], listening=False)
    connection = socket.create_connection(address, timeout=left(until))
    try:
        tune(connection)
        send(connection, [purpose.value], until)
        certificate = b""
        if security.tls:
            connection.settimeout(left(until))
            secured = contexts.client().wrap_socket(connection, server_hostname=security.tls_name or address[0])
            connection, certificate = secured, peer_certificate(secured)
        if secret := security.read_secret():
            exchange(connection, as_client(secret, Binding(purpose, endpoint, certificate)), until)
    except BaseException:
        connection.close()
        raise
    return connection


def secure(
    connection: socket.socket,
    advertised: str,
    security: LinkSecurity,
    contexts: Contexts,
    purpose: Purpose,
    until: float,
) -> socket.socket:
    """The accepting end, after the purpose was read: the socket to use from now on. Raises OSError."""
    certificate = b""
    if security.tls:
        context, certificate = contexts.server()
        connection.settimeout(left(until))
        connection = context.wrap_socket(connection, server_side=True)
    try:
        if secret := security.read_secret():
            exchange(connection, as_server(secret, Binding(purpose, advertised, certificate)), until)
    except BaseException:
        connection.close()
        raise
    return connection


def exchange(connection: socket.socket, steps: Exchange, until: float) -> None:
    """Drive a handshake over a blocking socket."""
    got = b""
    try:
        while True:
            step = steps.send(got) if got else next(steps)
            if isinstance(step, bytes):
                send(connection, [step], until)
                got = b""
            else:
                buffer = bytearray(step)
                receive_into(connection, memoryview(buffer), until)
                got = bytes(buffer)
    except StopIteration:
        return


def send(connection: socket.socket, buffers: Sequence[bytes | memoryview], until: float) -> None:
    """Everything, without joining or copying it here. Raises TimeoutError at the deadline."""
    rest = [memoryview(buffer) for buffer in buffers]
    gather = not isinstance(connection, ssl.SSLSocket)  # records have no scatter/gather
    connection.settimeout(left(until))  # once: it is a system call, and TLS moves 16 KiB at a time
    while rest:
        left(until)
        sent = connection.sendmsg(rest) if gather else connection.send(rest[0])
        while rest and sent >= len(rest[0]):
            sent -= len(rest.pop(0))
        if sent:
            rest[0] = rest[0][sent:]


def receive_into(connection: socket.socket, view: memoryview, until: float) -> None:
    """Fill `view`. Raises ConnectionError where the peer closes before, TimeoutError at the deadline."""
    got = 0
    connection.settimeout(left(until))
    while got < len(view):
        left(until)
        count = connection.recv_into(view[got:])
        if not count:
            raise ConnectionResetError("the peer closed the connection")
        got += count


def hang_up(connection: socket.socket) -> None:
    """Wake whoever waits in this socket on another thread, which then closes it."""
    with contextlib.suppress(OSError):  # it is not connected any more
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # not SSLSocket's own, which alters it under the reader


def left(until: float) -> float | None:
    """Seconds to the deadline; None (no end) for infinity. Raises TimeoutError past it."""
    if until == float("inf"):
        return None
    remaining = until - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("the peer did not keep up")
    return remaining
