"""The frames between decode and prefill workers."""

from __future__ import annotations

import msgspec

from workers.protocol.vocabulary import Address, ErrorCode, Finish, RequestId

# --- decode worker to prefill worker -------------------------------------------------------------------------


class Subscribe(msgspec.Struct, tag="subscribe", kw_only=True):
    """The decode worker knows of this request and will pull it."""

    request_id: RequestId
    epoch: int


class Credit(msgspec.Struct, tag="credit", kw_only=True):
    """Room for the whole request is set aside; the first `have_blocks` blocks are already here, and pinned."""

    request_id: RequestId
    have_blocks: int


class NoCredit(msgspec.Struct, tag="no_credit", kw_only=True):
    """No room now; ask again after `retry_after_s`."""

    request_id: RequestId
    reason: str
    retry_after_s: float


class Release(msgspec.Struct, tag="release", kw_only=True):
    """Every block and state section was copied and verified, or (in answer to `Abort`) nothing is copied any more.

    Either way prefill may free them.
    """

    request_id: RequestId


class Abort(msgspec.Struct, tag="abort", kw_only=True):
    """Either side gives the transfer up. The receiver frees its side and tells its gateway."""

    request_id: RequestId
    code: ErrorCode
    message: str


# --- prefill worker to decode worker -------------------------------------------------------------------------


class ArenaOffer(msgspec.Struct, tag="arena", kw_only=True):
    """The memory blocks are pulled from. Over a unix socket one file descriptor (memfd) rides on this frame.
    Over a network `ways` has what each way of reading it needs to be told: `tcp`, the ticket of `OpenBlocks`. (One for
    RDMA would carry its engine's description of the registered memory.)

    The arena is `blocks_total` generation counters (little-endian u64, 64-byte aligned region of `header_bytes`)
    and then `blocks_total` blocks of `block_bytes`. A counter changes whenever its block is given to another owner;
    the puller compares it after copying.
    """

    header_bytes: int
    blocks_total: int
    block_bytes: int
    ways: dict[str, bytes] = {}


class Reserve(msgspec.Struct, tag="reserve", kw_only=True):
    """Prefill of this request is about to start: asks for `Credit`."""

    request_id: RequestId


class BlocksReady(msgspec.Struct, tag="blocks", kw_only=True):
    """Blocks [first, first + len(slots)) of the request hold their final bytes."""

    request_id: RequestId
    first: int
    slots: list[int]
    generations: list[int]


class StateSectionPart(msgspec.Struct, tag="section", kw_only=True):
    """The next bytes of one section of the request: its window rings, or a state."""

    request_id: RequestId
    name: str
    data: bytes


class StateSectionRef(msgspec.Struct, kw_only=True):
    """One named, versioned section, whose `nbytes` bytes came in parts."""

    name: str
    version: int
    nbytes: int


class StateReady(msgspec.Struct, tag="state", kw_only=True):
    """Prefill is complete: what decode needs beside the blocks. Sent after the last `BlocksReady` and
    `StateSectionPart`.
    """

    request_id: RequestId
    first_token: int
    sections: list[StateSectionRef]
    finish: Finish | None = None
    """Set where the first token ended the request: decode gives its room back and says nothing to the gateway."""


# --- decode worker to prefill worker, on the connection that blocks are read over ---------------------------------


class OpenBlocks(msgspec.Struct, tag="open_blocks", kw_only=True):
    """The first frame of that connection: whose it is. Answered by `BlocksOpen` or `Refused`."""

    ticket: bytes
    """From `ArenaOffer.ways`: it is good for as long as the link on which it came."""
    expect: Address


class BlocksOpen(msgspec.Struct, tag="blocks_open", kw_only=True):
    block_bytes: int


class ReadBlocks(msgspec.Struct, tag="read_blocks", kw_only=True):
    """Answered by as many blocks, in order, each as `workers.transfer.tcp.wire` describes."""

    request_id: RequestId
    slots: list[int]
    generations: list[int]
