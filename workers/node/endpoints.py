"""Where the workers of this host listen: unix sockets, and a TCP port each where other hosts shall reach them."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from workers.home import SOCKET_PATH_LIMIT
from workers.network.endpoints import is_wildcard, parse_endpoint, tcp_endpoint
from workers.network.security import NO_SECURITY, InsecureLink, LinkSecurity
from workers.protocol import Endpoint
from workers.spec import TransferChoice, WorkerNetwork


class NoPort(OSError):
    """Every port of the range is taken."""


class BadNetwork(ValueError):
    """The settings of this host's network are wrong; the message names the one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNetwork:
    """How this host's workers are reached. The default: unix sockets alone."""

    listen: str = ""
    """Host to bind, empty for unix sockets alone."""
    ports: range = range(0)
    advertise: str = ""
    """Host that others dial."""
    security: LinkSecurity = NO_SECURITY
    transfer: TransferChoice = TransferChoice.AUTO

    @classmethod
    def of(
        cls, *, listen: str, ports: str, advertise: str, security: LinkSecurity, transfer: TransferChoice
    ) -> NodeNetwork:
        """From the settings as they are written: `tcp:10.0.0.5`, `7100-7199`. Raises BadNetwork."""
        if not listen:
            return cls(security=security, transfer=transfer)
        scheme, _, host = listen.partition(":")
        host = host.strip("[]")
        if scheme != "tcp" or not host:
            raise BadNetwork(f"GALLEY_WORKER_LISTEN is {listen!r}, tcp:HOST is needed")
        first, _, last = ports.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal() and 0 < int(first) <= int(last or first) <= 65535):
            raise BadNetwork(f"GALLEY_WORKER_PORTS is {ports!r}, FIRST-LAST is needed")
        if is_wildcard(host) and not advertise:
            raise BadNetwork(f"GALLEY_WORKER_LISTEN binds every address ({host}): GALLEY_WORKER_ADVERTISE is needed")
        try:
            security.check(host, listening=True)
            security.read_secret()
        except InsecureLink as error:
            raise BadNetwork(f"GALLEY_WORKER_LISTEN={listen} is refused: {error} (GALLEY_LINK_...)") from error
        return cls(
            listen=host,
            ports=range(int(first), int(last or first) + 1),
            advertise=advertise or host,
            security=security,
            transfer=transfer,
        )

    def place(self, worker: str, sockets: Path, taken: Collection[str]) -> tuple[Endpoint, WorkerNetwork]:
        """A worker's endpoint and the rest of its network; `taken` are the endpoints of this host's other workers.

        Raises NoPort. A port that somebody takes before the worker binds it costs one more start.
        """
        local = unix_endpoint(worker, sockets)
        if not self.listen:
            return local, WorkerNetwork(security=self.security, transfer=self.transfer)
        port = self._free_port(taken)
        endpoint, listen = tcp_endpoint(self.advertise, port), tcp_endpoint(self.listen, port)
        network = WorkerNetwork(
            listen=None if listen == endpoint else listen, local=local, security=self.security, transfer=self.transfer
        )
        return endpoint, network

    def _free_port(self, taken: Collection[str]) -> int:
        used = {parse_endpoint(endpoint)[1][1] for endpoint in taken if endpoint.startswith("tcp:")}
        family = socket.AF_INET6 if ":" in self.listen else socket.AF_INET
        for port in self.ports:
            if port in used:
                continue
            try:
                with socket.create_server((self.listen, port), family=family):
                    return port
            except OSError as error:
                refusal = error
        if used.issuperset(self.ports):
            raise NoPort(f"{len(self.ports)} workers run here, one on each port of GALLEY_WORKER_PORTS")
        raise NoPort(f"no port of GALLEY_WORKER_PORTS can be bound at {self.listen}: {refusal}")


def unix_endpoint(worker: str, sockets: Path) -> Endpoint:
    """A socket in the private folder; names too long for one are shortened by a hash."""
    path = sockets / f"{worker}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
        path = path.with_name(hashlib.sha256(worker.encode()).hexdigest()[:16] + ".sock")
    return Endpoint(f"unix:{path}")
