"""One accepted connection: a bounded outbox that nobody waits for, and the greeting."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from workers import protocol
from workers.protocol import ErrorCode, Frame, Hello, PeerKind, Refused, RequestId
from workers.spec import WorkerSpec

logger = logging.getLogger(__name__)

OUTBOX_BYTES = 4 * 1024 * 1024
"""Unsent bytes at which a gateway or agent is too slow and is dropped. A token is about 30 bytes."""
PEER_OUTBOX_BYTES = 2 * protocol.MAX_FRAME_BYTES
"""The same for decode workers, whose state sections may be large."""


@dataclass(slots=True, eq=False)
class Connection:
    """`send` never blocks: a peer that does not read fast enough loses its connection; the engine never waits."""

    hello: Hello
    writer: asyncio.StreamWriter
    requests: set[RequestId] = field(default_factory=set)
    """Live requests of a gateway; they are cancelled when its connection ends."""
    heard_at: float = field(default_factory=time.monotonic)
    overflowed: bool = False

    @property
    def unsent_bytes(self) -> int:
        return self.writer.transport.get_write_buffer_size()

    def send(self, frame: Frame) -> None:
        if self.writer.is_closing():
            return
        self.writer.write(protocol.encode(frame))
        bound = PEER_OUTBOX_BYTES if self.hello.kind is PeerKind.WORKER else OUTBOX_BYTES
        if self.unsent_bytes > bound:
            self.overflowed = True
            logger.warning(
                "dropping a peer that does not read",
                extra={"fields": {"peer": self.hello.peer, "unsent_bytes": self.unsent_bytes}},
            )
            self.writer.transport.abort()


async def read_hello(reader: asyncio.StreamReader, spec: WorkerSpec, deadline_s: float) -> Hello | Refused | None:
    """The caller's greeting, the refusal it deserves, or None where it said nothing (in time, or at all)."""
    try:
        async with asyncio.timeout(deadline_s):
            frame = await protocol.read_frame(reader, protocol.MAX_GREETING_BYTES)
    except TimeoutError:
        return None
    except protocol.ProtocolError as error:
        return Refused(code=ErrorCode.VERSION, message=str(error))
    if frame is None:
        return None
    if not isinstance(frame, Hello):
        return Refused(code=ErrorCode.INVALID, message="the first frame must be a greeting")
    if frame.version != protocol.PROTOCOL_VERSION:
        return Refused(
            code=ErrorCode.VERSION,
            message=f"this worker speaks protocol {protocol.PROTOCOL_VERSION}, the caller {frame.version}",
        )
    if frame.expect is not None and frame.expect != spec.address:
        return Refused(code=ErrorCode.STALE_EPOCH, message=f"here is {spec.address}, not {frame.expect}")
    return frame
