"""The first frame each way, on any connection."""

from __future__ import annotations

from typing import Final

import msgspec

from workers.protocol.vocabulary import Address, Endpoint, ErrorCode, PeerKind, Role, WorkerState

PROTOCOL_VERSION: Final = 2


class Hello(msgspec.Struct, tag="hello", kw_only=True):
    version: int = PROTOCOL_VERSION
    peer: str
    """Who calls: a gateway process's name, or `str(Address)` of a worker."""
    kind: PeerKind
    expect: Address | None = None
    """Whom the caller believes to reach; another epoch is refused."""


class Welcome(msgspec.Struct, tag="welcome", kw_only=True):
    version: int = PROTOCOL_VERSION
    address: Address
    role: Role
    state: WorkerState
    model: str
    revision: str
    """Hash of the revision's specification: only workers of equal revision exchange blocks."""
    block_identity: str
    """Fingerprint of all fields of block identity except tenant and tokens (workers/identity.py)."""
    block_tokens: int
    max_context: int
    max_queue: int
    host: str = ""
    """`workers.network.endpoints.host_id` there: peers with the same one may share memory."""
    local: Endpoint | None = None
    """A unix socket of the same worker, for peers on its host."""


class Refused(msgspec.Struct, tag="refused", kw_only=True):
    """The greeting failed; the connection closes after this frame."""

    code: ErrorCode
    message: str
