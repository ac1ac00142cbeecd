"""The prefill side: one thread per decode worker sends the blocks that it asks for, out of the arena.

A ticket says who may: it comes with `ArenaOffer` on an authenticated link and ends with that link, which has pings and
a silence deadline. So a reader that was stopped, or whose host vanished, cannot keep a thread for longer.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from workers import protocol
from workers.network.handshake import Purpose
from workers.network.security import LinkSecurity
from workers.network.sockets import hang_up, secure, send
from workers.network.tls import Contexts
from workers.protocol import Address, BlocksOpen, ErrorCode, OpenBlocks, ProtocolError, ReadBlocks, Refused, RequestId
from workers.transfer.base import ArenaLike
from workers.transfer.deadlines import Deadlines
from workers.transfer.tcp.wire import HEAD, TAIL, Answer, checksum, receive_frame

logger = logging.getLogger(__name__)

MAX_THREADS = 256
"""Connections for blocks, those that have not proved anything yet included."""
MAX_UNPROVEN = 32
"""Of these: strangers leave room for decode workers."""
_FOREVER = float("inf")

OnRead = Callable[[Address, RequestId], None]


@dataclass(slots=True, eq=False)
class Ticket:
    """One link's right to read an arena."""

    value: bytes
    peer: Address
    arena: ArenaLike
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _connection: socket.socket | None = None
    _ended: bool = False

    def take(self, connection: socket.socket) -> bool:
        """This connection is the link's from now on, and the one before it ends. False: the link has ended."""
        with self._lock:
            if self._ended:
                return False
            before, self._connection = self._connection, connection
        if before is not None:
            hang_up(before)
        return True

    def end(self) -> None:
        with self._lock:
            self._ended = True
            if self._connection is not None:
                hang_up(self._connection)


class BlockOwner:
    """What `TcpServer` hands connections for blocks to."""

    def __init__(
        self,
        address: Address,
        endpoint: str,
        security: LinkSecurity,
        contexts: Contexts,
        deadlines: Deadlines,
        on_read: OnRead,
    ) -> None:
        """`endpoint` as advertised. `on_read` is called on a sending thread, after each batch of a request."""
        self._address, self._endpoint = address, endpoint
        self._security, self._contexts = security, contexts
        self._deadlines = deadlines
        self._on_read = on_read
        self._lock = threading.Lock()
        self._tickets: dict[bytes, Ticket] = {}
        self._threads = 0
        self._unproven = 0
        self.refused = 0
        """Connections closed before they showed a ticket that is good."""

    def issue(self, peer: Address, arena: ArenaLike) -> Ticket:
        ticket = Ticket(secrets.token_bytes(32), peer, arena)
        with self._lock:
            self._tickets[ticket.value] = ticket
        return ticket

    def revoke(self, ticket: Ticket) -> None:
        """The link ended: nobody reads on its behalf any more. Returns at once."""
        with self._lock:
            self._tickets.pop(ticket.value, None)
        ticket.end()

    def serve(self, connection: socket.socket) -> None:
        """Take an accepted connection; closes it in the end. Returns at once."""
        peer = _peer(connection)
        with self._lock:
            full = self._threads >= MAX_THREADS or self._unproven >= MAX_UNPROVEN
            if not full:
                self._threads += 1
                self._unproven += 1
            open_now, unproven = self._threads, self._unproven
        if full:
            self._refuse(connection, peer, f"{open_now} connections for blocks are open, {unproven} of them not proven")
            return
        try:
            threading.Thread(target=self._run, args=(connection, peer), name="blocks-out", daemon=True).start()
        except RuntimeError as error:  # the process may have no more threads
            self._ended(proven=False)
            self._refuse(connection, peer, str(error))

    @property
    def connections(self) -> int:
        return self._threads

    # --- on a thread of the connection -----------------------------------------------------------------------

    def _run(self, connection: socket.socket, peer: str) -> None:
        ticket: Ticket | None = None
        try:
            until = time.monotonic() + self._deadlines.greeting_s
            try:
                connection = secure(connection, self._endpoint, self._security, self._contexts, Purpose.BLOCKS, until)
                ticket = self._open(connection, until)
            except (OSError, ProtocolError) as error:
                self._refuse(connection, peer, str(error) or type(error).__name__)
                return
            with self._lock:
                self._unproven -= 1
            peer = str(ticket.peer)
            while True:
                self._answer(connection, ticket)
        except (OSError, ProtocolError) as error:
            logger.info("the connection for blocks of %s ended: %s", peer, error)
        except Exception:  # a fault of ours ends this connection; the reader dials again or fails its request
            logger.exception("sending blocks to %s failed", peer)
        finally:
            connection.close()
            self._ended(proven=ticket is not None)

    def _ended(self, *, proven: bool) -> None:
        with self._lock:
            self._threads -= 1
            self._unproven -= not proven

    def _refuse(self, connection: socket.socket, peer: str, why: str) -> None:
        with self._lock:
            self.refused += 1
        logger.warning("a connection for blocks of %s was refused: %s", peer, why)
        connection.close()

    def _open(self, connection: socket.socket, until: float) -> Ticket:
        """Raises ProtocolError, having said why, where the ticket is not good."""
        opening = receive_frame(connection, until, limit=protocol.MAX_GREETING_BYTES)
        if not isinstance(opening, OpenBlocks):
            raise ProtocolError(f"it began with {type(opening).__name__}")
        with self._lock:
            ticket = self._tickets.get(opening.ticket)
        if opening.expect != self._address:
            refused = Refused(code=ErrorCode.STALE_EPOCH, message=f"here is {self._address}, not {opening.expect}")
        elif ticket is None or not ticket.take(connection):
            refused = Refused(code=ErrorCode.INVALID, message="the link that this ticket came with has ended")
        else:
            send(connection, [protocol.encode(BlocksOpen(block_bytes=ticket.arena.block_bytes))], until)
            return ticket
        send(connection, [protocol.encode(refused)], until)
        raise ProtocolError(refused.message)

    def _answer(self, connection: socket.socket, ticket: Ticket) -> None:
        """Wait for a request (as long as the link stands) and send what it asks for."""
        request = receive_frame(connection, _FOREVER)
        if not isinstance(request, ReadBlocks) or len(request.slots) != len(request.generations):
            raise ProtocolError("it asked for blocks with something else than slots and their generations")
        arena = ticket.arena
        for position, (slot, generation) in enumerate(zip(request.slots, request.generations, strict=True)):
            until = time.monotonic() + self._deadlines.block_s
            if not 0 <= slot < arena.blocks_total:
                send(connection, [HEAD.pack(Answer.NO_SUCH_BLOCK, position), TAIL.pack(0, 0)], until)
                continue
            found = arena.generation(slot)
            if found != generation:
                send(connection, [HEAD.pack(Answer.STALE, position), TAIL.pack(found, 0)], until)
                continue
            data = arena.block(slot)
            crc = checksum(slot, generation, data)
            send(connection, [HEAD.pack(Answer.SENT, position), data], until)
            # After the copy (the kernel has it, or TLS its ciphertext): a new owner's counter is raised before its
            # first byte is written.
            send(connection, [TAIL.pack(arena.generation(slot), crc)], until)
        self._on_read(ticket.peer, request.request_id)


def _peer(connection: socket.socket) -> str:
    try:
        host, port = connection.getpeername()[:2]
    except (OSError, ValueError):  # gone already, or no TCP
        return "a stranger"
    return f"{host}:{port}"
