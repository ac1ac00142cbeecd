"""Endpoints as text."""

from __future__ import annotations

import pytest

from workers.network.endpoints import is_loopback, is_wildcard, parse_endpoint, tcp_endpoint


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("unix:/a/b.sock", ("unix", "/a/b.sock")),
        ("tcp:10.0.0.5:7100", ("tcp", ("10.0.0.5", 7100))),
        ("tcp:[fd00::1]:7100", ("tcp", ("fd00::1", 7100))),
        ("tcp:node-3.example:1", ("tcp", ("node-3.example", 1))),
    ],
)
def test_endpoints(text: str, parsed: tuple[str, object]) -> None:
    assert parse_endpoint(text) == parsed


@pytest.mark.parametrize("text", ["", "unix:", "tcp:", "tcp:host", "tcp::1", "tcp:host:", "tcp:h:65536", "udp:h:1"])
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(ValueError, match="no endpoint"):
        parse_endpoint(text)


@pytest.mark.parametrize("host", ["10.0.0.5", "fd00::1", "node"])
def test_written_and_read_again(host: str) -> None:
    assert parse_endpoint(tcp_endpoint(host, 7100)) == ("tcp", (host, 7100))


def test_what_stays_on_this_machine() -> None:
    hosts = ["127.0.0.1", "127.0.0.2", "::1", "localhost", "10.0.0.5", "0.0.0.0", "::", "localhost.example"]
    assert [is_loopback(host) for host in hosts] == [True] * 4 + [False] * 4
    assert [host for host in hosts if is_wildcard(host)] == ["0.0.0.0", "::"]
