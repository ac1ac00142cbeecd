"""Where an agent puts its workers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.workers.certificates import secret_file
from tests.workers.node.factories import free_ports
from workers.network.endpoints import tcp_endpoint
from workers.network.security import LinkSecurity, Plaintext
from workers.node.endpoints import BadNetwork, NodeNetwork, NoPort
from workers.spec import TransferChoice, WorkerNetwork

LOOPBACK = LinkSecurity(plaintext=Plaintext.LOOPBACK)


def network(
    listen: str = "tcp:127.0.0.1", ports: str = "7100-7199", advertise: str = "", security: LinkSecurity = LOOPBACK
) -> NodeNetwork:
    return NodeNetwork.of(
        listen=listen, ports=ports, advertise=advertise, security=security, transfer=TransferChoice.AUTO
    )


def test_unix_sockets_by_default(tmp_path: Path) -> None:
    endpoint, rest = network(listen="").place("w", tmp_path, [])
    assert endpoint == f"unix:{tmp_path}/w.sock"
    assert rest == WorkerNetwork(security=LOOPBACK)


def test_each_worker_takes_the_first_free_port_and_has_a_socket_beside_it(tmp_path: Path) -> None:
    first, second, third = free_ports(3)
    placed = network(ports=f"{first}-{third}")
    endpoint, rest = placed.place("w", tmp_path, [])
    assert endpoint == tcp_endpoint("127.0.0.1", first)
    assert (rest.listen, rest.local, rest.security) == (None, f"unix:{tmp_path}/w.sock", LOOPBACK)
    assert placed.place("x", tmp_path, [endpoint, "unix:/elsewhere"])[0] == tcp_endpoint("127.0.0.1", second)
    with socket.create_server(("127.0.0.1", second)):
        assert placed.place("x", tmp_path, [endpoint])[0] == tcp_endpoint("127.0.0.1", third)


def test_a_range_that_is_used_up(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    placed = network(ports=str(port))
    endpoint, _ = placed.place("w", tmp_path, [])
    with pytest.raises(NoPort, match="1 workers run here"):
        placed.place("x", tmp_path, [endpoint])
    with socket.create_server(("127.0.0.1", port)), pytest.raises(NoPort, match="in use"):
        placed.place("x", tmp_path, [])


def test_another_name_outside(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    secret = LinkSecurity(secret_file=secret_file(tmp_path))
    placed = network("tcp:0.0.0.0", str(port), "node-3.example", secret)
    endpoint, rest = placed.place("w", tmp_path, [])
    assert endpoint == f"tcp:node-3.example:{port}"
    assert rest.listen == f"tcp:0.0.0.0:{port}"


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"listen": "10.0.0.5"}, "GALLEY_WORKER_LISTEN"),
        ({"listen": "tcp:"}, "GALLEY_WORKER_LISTEN"),
        ({"ports": "7100-7000"}, "GALLEY_WORKER_PORTS"),
        ({"ports": "seven"}, "GALLEY_WORKER_PORTS"),
        ({"ports": "7100-70000"}, "GALLEY_WORKER_PORTS"),
        ({"listen": "tcp:0.0.0.0", "security": LinkSecurity(plaintext=Plaintext.ANYWHERE)}, "GALLEY_WORKER_ADVERTISE"),
        ({"listen": "tcp:10.0.0.5"}, "GALLEY_LINK_"),
        ({"security": LinkSecurity()}, "GALLEY_LINK_"),
        ({"security": LinkSecurity(secret_file="/nonexistent")}, "GALLEY_LINK_"),
    ],
)
def test_bad_settings_name_themselves(options: dict[str, object], setting: str) -> None:
    with pytest.raises(BadNetwork, match=setting):
        network(**options)  # type: ignore[arg-type]
