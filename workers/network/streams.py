"""Dialling a worker for frames, with asyncio: what gateways, node agents and decode workers do."""

from __future__ import annotations

import asyncio
import socket

from workers.network.endpoints import parse_endpoint
from workers.network.handshake import Binding, Exchange, Purpose, as_client
from workers.network.security import AuthenticationFailed, LinkSecurity
from workers.network.sockets import tune
from workers.network.tls import Contexts, peer_certificate

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def open_stream(endpoint: str, security: LinkSecurity, contexts: Contexts | None = None) -> Streams:
    """A stream ready for the greeting. The caller bounds the time.

    Raises OSError (InsecureLink and AuthenticationFailed among them), ValueError for what is no endpoint.
    """
    scheme, address = parse_endpoint(endpoint)
    if scheme == "unix":
        return await asyncio.open_unix_connection(address)
    host, port = address
    security.check(host, listening=False)
    connection = await _connect(host, port)
    writer: asyncio.StreamWriter | None = None
    try:
        await asyncio.get_running_loop().sock_sendall(connection, Purpose.FRAMES.value)
        if security.tls:
            context = (contexts or Contexts(security)).client()
            name = security.tls_name or host
            reader, writer = await asyncio.open_connection(sock=connection, ssl=context, server_hostname=name)
            certificate = peer_certificate(writer.get_extra_info("ssl_object"))
        else:
            reader, writer = await asyncio.open_connection(sock=connection)
            certificate = b""
        if secret := security.read_secret():
            await exchange(reader, writer, as_client(secret, Binding(Purpose.FRAMES, endpoint, certificate)))
    except BaseException:
        if writer is not None:
            writer.transport.abort()
        connection.close()
        raise
    return reader, writer


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, steps: Exchange) -> None:
    """Drive a handshake over a stream. Raises AuthenticationFailed also where the peer just closes."""
    got = b""
    try:
        while True:
            step = steps.send(got) if got else next(steps)
            if isinstance(step, bytes):
                writer.write(step)
                got = b""
            else:
                got = await reader.readexactly(step)
    except StopIteration:
        return
    except asyncio.IncompleteReadError as error:
        message = "the peer closed during the handshake: do both ends have the same secret and endpoint?"
        raise AuthenticationFailed(message) from error


async def _connect(host: str, port: int) -> socket.socket:
    """To the first of the host's addresses that answers."""
    loop = asyncio.get_running_loop()
    failure: OSError = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        connection.setblocking(False)
        try:
            tune(connection)
            await loop.sock_connect(connection, address)
            return connection
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
    raise failure
