"""The decode side: a prefill worker's arena behind a connection of its own, read by one thread."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from workers import protocol
from workers.network.handshake import Purpose
from workers.network.security import LinkSecurity
from workers.network.sockets import connect, hang_up, receive_into, send
from workers.network.tls import Contexts
from workers.protocol import (
    Address,
    ArenaOffer,
    BlocksOpen,
    Endpoint,
    ErrorCode,
    OpenBlocks,
    ProtocolError,
    ReadBlocks,
    Refused,
    RequestId,
)
from workers.transfer.base import BlockSource, PeerUnreachable, Pull, StaleBlock, TransferError
from workers.transfer.deadlines import Deadlines
from workers.transfer.tcp.wire import HEAD, TAIL, Answer, checksum, receive_frame

logger = logging.getLogger(__name__)

WAY = "tcp"
"""Key of `ArenaOffer.ways`."""
TRIES = 2
"""Per batch: a connection that broke, or brought damaged bytes, is made anew once."""


class DamagedBlock(TransferError):
    """The bytes that came are not those that were sent."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.TRANSFER, message)


class RemoteArena(BlockSource):
    """`read` runs on one thread; `close` may come at any time, and ends a read that is under way."""

    def __init__(
        self,
        endpoint: Endpoint,
        owner: Address,
        offer: ArenaOffer,
        security: LinkSecurity,
        contexts: Contexts,
        deadlines: Deadlines,
        on_damaged: Callable[[], None],
    ) -> None:
        """Raises PeerUnreachable for an offer that TCP cannot use."""
        if WAY not in offer.ways:
            raise PeerUnreachable(f"{owner} does not offer its blocks over TCP")
        self.block_bytes = offer.block_bytes
        self._endpoint, self._owner, self._ticket = endpoint, owner, offer.ways[WAY]
        self._security, self._contexts = security, contexts
        self._deadlines, self._on_damaged = deadlines, on_damaged
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="blocks-in")
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._closed = False

    async def open(self) -> None:
        """Connect now rather than with the first block. Raises PeerUnreachable."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._open)

    async def read(self, request_id: RequestId, pulls: Sequence[Pull]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._read, request_id, list(pulls))

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._connection is not None:
                hang_up(self._connection)
        # Reads that wait for the thread are not cancelled but fail on it: their pulls have to hear of it.
        self._thread.submit(self._drop)
        self._thread.shutdown(wait=False)

    # --- on the thread ---------------------------------------------------------------------------------------

    def _read(self, request_id: RequestId, pulls: list[Pull]) -> None:
        until = time.monotonic() + self._deadlines.block_batch_s
        for last in (False,) * (TRIES - 1) + (True,):
            try:
                self._read_once(request_id, pulls, until)
                return
            except (OSError, ProtocolError) as error:
                self._drop()
                if last or self._closed or isinstance(error, TimeoutError):
                    raise PeerUnreachable(f"blocks of {self._owner} at {self._endpoint}: {error}") from error
                logger.warning("blocks of %s: %s; connecting again", self._owner, error)
            except StaleBlock:
                self._drop()  # what was asked for behind it is still under way
                raise
            except DamagedBlock as error:
                self._drop()
                self._on_damaged()
                if last:
                    raise
                logger.warning("blocks of %s: %s; reading again", self._owner, error)

    def _read_once(self, request_id: RequestId, pulls: list[Pull], until: float) -> None:
        connection = self._open()
        ask = ReadBlocks(
            request_id=request_id,
            slots=[pull.slot for pull in pulls],
            generations=[pull.generation for pull in pulls],
        )
        send(connection, [protocol.encode(ask)], self._soon(until))
        head, tail = bytearray(HEAD.size), bytearray(TAIL.size)
        for position, pull in enumerate(pulls):
            by = self._soon(until)
            receive_into(connection, memoryview(head), by)
            status, at = HEAD.unpack(head)
            if at != position or status not in list(Answer):
                raise ProtocolError(f"block {position} was asked for, {at} came with status {status}")
            if status == Answer.SENT:
                receive_into(connection, pull.destination, by)
            receive_into(connection, memoryview(tail), by)
            generation, crc = TAIL.unpack(tail)
            if status == Answer.NO_SUCH_BLOCK:
                raise StaleBlock(f"slot {pull.slot} is outside the peer's arena")
            if generation != pull.generation:
                raise StaleBlock(f"slot {pull.slot} has generation {generation}, announced was {pull.generation}")
            if crc != checksum(pull.slot, pull.generation, pull.destination):
                raise DamagedBlock(f"slot {pull.slot} came with a CRC that does not fit its bytes")

    def _soon(self, until: float) -> float:
        """The deadline of the next block within that of the batch."""
        return min(until, time.monotonic() + self._deadlines.block_s)

    def _open(self) -> socket.socket:
        """The connection, made where there is none. Raises PeerUnreachable."""
        if self._connection is not None and not self._closed:
            return self._connection
        until = time.monotonic() + self._deadlines.connect_s
        try:
            connection = connect(self._endpoint, self._security, self._contexts, Purpose.BLOCKS, until)
        except (OSError, ValueError) as error:
            raise PeerUnreachable(f"no connection for blocks to {self._endpoint}: {error}") from error
        with self._lock:
            if self._closed:
                connection.close()
                raise PeerUnreachable(f"the link to {self._owner} has ended")
            self._connection = connection
        try:
            opening = OpenBlocks(ticket=self._ticket, expect=self._owner)
            send(connection, [protocol.encode(opening)], until)
            answer = receive_frame(connection, until, limit=protocol.MAX_GREETING_BYTES)
        except (OSError, ProtocolError) as error:
            self._drop()
            raise PeerUnreachable(f"no connection for blocks to {self._endpoint}: {error}") from error
        if not isinstance(answer, BlocksOpen) or answer.block_bytes != self.block_bytes:
            self._drop()
            what = f"{answer.code}: {answer.message}" if isinstance(answer, Refused) else type(answer).__name__
            raise PeerUnreachable(f"{self._endpoint} does not open its blocks: {what}")
        return connection

    def _drop(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
