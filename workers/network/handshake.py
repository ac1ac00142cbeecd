"""Proof of the shared secret: a challenge and an answer each way, before the first frame.

    client: nonce (32 bytes)          server: nonce
    client: HMAC-SHA-256 of its side  server: HMAC-SHA-256 of its side, to a client whose proof was right

Each proof covers who gives it, what the connection is for, both nonces, the endpoint as the worker advertises it and
the client dialled it, and under TLS the worker's certificate. Hence a proof cannot be replayed, reflected, used for
another purpose, or passed on by somebody between who stands at another endpoint or ends TLS himself.

What it does not do, without TLS: what follows is neither encrypted nor authenticated. Whoever can read the network
reads it, and whoever can change packets under way can take the connection over after the handshake.

The exchange itself knows no socket: a generator that yields bytes to send and numbers of bytes to receive.
"""

from __future__ import annotations

import enum
import hmac
import secrets
from collections.abc import Generator
from dataclasses import dataclass

from workers.network.security import AuthenticationFailed

NONCE_BYTES = 32
PROOF_BYTES = 32
_LABEL = b"galley link 1"

Exchange = Generator[bytes | int, bytes, None]


class Purpose(bytes, enum.Enum):
    """What a connection is for: the first 8 bytes of every TCP connection, before TLS."""

    FRAMES = b"GALLEY1f"
    BLOCKS = b"GALLEY1b"


PURPOSE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Binding:
    """What a proof is good for and nothing else."""

    purpose: Purpose
    endpoint: str
    """As advertised: both ends know it."""
    certificate: bytes = b""
    """SHA-256 of the worker's certificate; empty without TLS."""


def as_client(secret: bytes, binding: Binding) -> Exchange:
    """Raises AuthenticationFailed where the worker does not hold the secret."""
    ours = secrets.token_bytes(NONCE_BYTES)
    yield ours
    theirs = yield NONCE_BYTES
    yield _proof(secret, b"client", ours, theirs, binding)
    answer = yield PROOF_BYTES
    if not hmac.compare_digest(answer, _proof(secret, b"server", ours, theirs, binding)):
        raise AuthenticationFailed(f"{binding.endpoint} does not hold our shared secret")


def as_server(secret: bytes, binding: Binding) -> Exchange:
    """Raises AuthenticationFailed, having said nothing, where the client does not hold the secret."""
    theirs = yield NONCE_BYTES
    ours = secrets.token_bytes(NONCE_BYTES)
    yield ours
    answer = yield PROOF_BYTES
    if not hmac.compare_digest(answer, _proof(secret, b"client", theirs, ours, binding)):
        raise AuthenticationFailed("wrong shared secret, or meant for another endpoint")
    yield _proof(secret, b"server", theirs, ours, binding)


def _proof(secret: bytes, side: bytes, client: bytes, server: bytes, binding: Binding) -> bytes:
    parts = (_LABEL, side, binding.purpose.value, client, server, binding.endpoint.encode(), binding.certificate)
    return hmac.digest(secret, b"".join(len(part).to_bytes(4, "big") + part for part in parts), "sha256")
