"""The exchange of proofs, without sockets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workers.network.handshake import Binding, Exchange, Purpose, as_client, as_server
from workers.network.security import AuthenticationFailed

SECRET = b"a secret of more than sixteen bytes"
BINDING = Binding(Purpose.FRAMES, "tcp:10.0.0.5:7100", b"certificate")


def run(client: Exchange, server: Exchange) -> list[bytes]:
    """Both to their end; what went over the wire."""
    ours = next(client)
    assert isinstance(ours, bytes)
    assert next(server) == len(ours)
    theirs = server.send(ours)
    assert isinstance(theirs, bytes)
    assert next(client) == len(theirs)
    proof = client.send(theirs)
    assert isinstance(proof, bytes)
    assert next(server) == len(proof)
    answer = server.send(proof)
    assert isinstance(answer, bytes)
    assert next(client) == len(answer)
    with pytest.raises(StopIteration):
        client.send(answer)
    with pytest.raises(StopIteration):
        next(server)
    return [ours, theirs, proof, answer]


def test_both_hold_the_secret() -> None:
    wire = run(as_client(SECRET, BINDING), as_server(SECRET, BINDING))
    assert len(set(wire)) == 4
    assert all(SECRET not in part for part in wire)


@pytest.mark.parametrize(
    ("secret", "binding"),
    [
        (b"another secret of some length", BINDING),
        (SECRET, replace(BINDING, purpose=Purpose.BLOCKS)),
        (SECRET, replace(BINDING, endpoint="tcp:10.0.0.6:7100")),
        (SECRET, replace(BINDING, certificate=b"")),
        (SECRET, replace(BINDING, certificate=b"of somebody between")),
    ],
)
def test_a_client_with_another_secret_or_purpose_or_way_is_told_nothing(secret: bytes, binding: Binding) -> None:
    with pytest.raises(AuthenticationFailed):
        run(as_client(secret, binding), as_server(SECRET, BINDING))


def test_a_server_that_reflects_the_clients_own_proof_is_found_out() -> None:
    client = as_client(SECRET, BINDING)
    nonce = next(client)
    next(client)
    assert isinstance(nonce, bytes)
    proof = client.send(nonce)
    next(client)
    assert isinstance(proof, bytes)
    with pytest.raises(AuthenticationFailed):
        client.send(proof)


def test_a_recorded_exchange_cannot_be_played_again() -> None:
    nonce, _, proof, _ = run(as_client(SECRET, BINDING), as_server(SECRET, BINDING))
    server = as_server(SECRET, BINDING)
    next(server)
    server.send(nonce)
    next(server)
    with pytest.raises(AuthenticationFailed):
        server.send(proof)
