"""One multiplexed connection to one worker: greeting, frames by request, liveness, reconnection with back-off.

Whether a worker may get requests is decided here and nowhere else: by frames that arrive on this connection (a status
every second) and by the age of its engine's last step. The lease in Valkey only says where to dial.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
import time
from collections.abc import Callable

from controlplane.inference.events import Lost, WorkerEvent
from controlplane.inference.greeting import GreetingFailed, greet
from controlplane.inference.limits import GatewayLimits
from workers.network.security import NO_SECURITY, LinkSecurity
from workers.network.streams import open_stream
from workers.protocol import (
    Address,
    Cancel,
    Decode,
    ErrorCode,
    Failed,
    Hello,
    Prefill,
    ProtocolError,
    RequestId,
    Role,
    Scheduled,
    Status,
    Tokens,
    Welcome,
    WorkerState,
    encode,
    read_frame,
)
from workers.spec import WorkerLease

log = logging.getLogger(__name__)

Receiver = Callable[[WorkerEvent], None]


class ConnectionState(enum.StrEnum):
    CONNECTING = "connecting"
    LOADING = "loading"
    READY = "ready"
    STALLED = "stalled"
    """Connected, but its engine has not come round for too long."""
    DRAINING = "draining"
    CLOSED = "closed"


class CannotSend(Exception):
    """The frame was not sent; the request can go elsewhere."""


class Connection:
    """Lives as long as the gateway knows the worker; `run()` keeps it connected. Belongs to one event loop."""

    def __init__(
        self, lease: WorkerLease, *, gateway: str, limits: GatewayLimits, security: LinkSecurity = NO_SECURITY
    ) -> None:
        self.lease = lease
        self.lease_seen = time.monotonic()
        self.welcome: Welcome | None = None
        self.status: Status | None = None
        self.error = ""
        """Why the last attempt failed or the connection ended."""
        self.reconnects = 0
        self.faults = 0
        self.pending_tokens = 0
        """Prompt tokens given to the worker since its last status, which does not count them yet."""
        self._gateway = gateway
        self._limits = limits
        self._security = security
        self._writer: asyncio.StreamWriter | None = None
        self._receivers: dict[RequestId, Receiver] = {}
        self._heard = 0.0
        self._stalled = False
        self._closed = False
        self._wake = asyncio.Event()

    # --- what others ask -----------------------------------------------------------------------------------------

    @property
    def worker(self) -> str:
        return self.lease.address.worker

    @property
    def address(self) -> Address:
        return self.lease.address

    @property
    def connected(self) -> bool:
        return self._writer is not None

    @property
    def heard_age_s(self) -> float:
        """Seconds since anything arrived; infinite where nothing ever did."""
        return time.monotonic() - self._heard if self._heard else float("inf")

    @property
    def step_age_s(self) -> float:
        """Age of the engine's last step, as of now."""
        return (self.status.step_age_s if self.status else 0.0) + self.heard_age_s if self._heard else float("inf")

    @property
    def requests(self) -> int:
        return len(self._receivers)

    @property
    def state(self) -> ConnectionState:
        if self._closed:
            return ConnectionState.CLOSED
        if self._writer is None or self.welcome is None:
            return ConnectionState.CONNECTING
        said = self.status.state if self.status else self.welcome.state
        if said is WorkerState.LOADING:
            return ConnectionState.LOADING
        if said is WorkerState.DRAINING:
            return ConnectionState.DRAINING
        return ConnectionState.STALLED if self.step_age_s > self._limits.stall_route_s else ConnectionState.READY

    @property
    def usable(self) -> bool:
        """Whether a new request may be sent now."""
        return self.state is ConnectionState.READY and self._unsent_bytes() < self._limits.write_buffer_bytes

    @property
    def role(self) -> Role:
        return self.welcome.role if self.welcome else self.lease.role

    @property
    def revision(self) -> str:
        return self.welcome.revision if self.welcome else self.lease.revision

    def _unsent_bytes(self) -> int:
        return self._writer.transport.get_write_buffer_size() if self._writer else 0

    # --- requests ------------------------------------------------------------------------------------------------

    def submit(self, frame: Prefill | Decode, receiver: Receiver) -> None:
        """Send a request; what comes back for its id goes to `receiver` until `forget`. Raises CannotSend."""
        if not self.usable:
            raise CannotSend(f"{self.address} is {self.state}")
        self._send(frame)
        self._receivers[frame.request_id] = receiver
        if isinstance(frame, Prefill):
            self.pending_tokens += len(frame.tokens) // 4

    def cancel(self, request_id: RequestId, reason: str) -> None:
        """Tell the worker to stop; nothing more is delivered for the id. Does nothing where the connection is gone."""
        if self._receivers.pop(request_id, None) is not None and self._writer is not None:
            self._send(Cancel(request_id=request_id, reason=reason))

    def forget(self, request_id: RequestId) -> None:
        self._receivers.pop(request_id, None)

    def _send(self, frame: Prefill | Decode | Cancel | Hello) -> None:
        if self._writer is None:
            raise CannotSend(f"{self.address} is not connected")
        self._writer.write(encode(frame))

    # --- life of the connection ----------------------------------------------------------------------------------

    def renew(self, lease: WorkerLease) -> None:
        """A lease was read. A larger epoch is a new process under the old name: everything of the old one ends."""
        self.lease_seen = time.monotonic()
        if lease.address.epoch < self.lease.address.epoch:
            return
        if lease != self.lease:
            replaced = lease.address != self.lease.address
            self.lease = lease
            if replaced:
                self._drop(f"replaced by {lease.address}")
            self._wake.set()

    def close(self) -> None:
        self._closed = True
        self._drop("the gateway closes")
        self._wake.set()

    async def run(self) -> None:
        """Connect, serve, reconnect, until `close()`."""
        backoff = self._limits.backoff_first_s
        expect_known_epoch = True
        while not self._closed:
            self._wake.clear()
            try:
                await self._connect(self.lease.address if expect_known_epoch else None)
                backoff, expect_known_epoch = self._limits.backoff_first_s, True
                await self._serve()
            except GreetingFailed as error:
                self._drop(str(error))
                # The worker restarted and its new lease has not been read (or Valkey is away): ask who is there now.
                expect_known_epoch = error.code is not ErrorCode.STALE_EPOCH
            except (OSError, ValueError, TimeoutError, ProtocolError) as error:
                self._drop(str(error) or type(error).__name__)
            except Exception as error:
                # A fault of ours in handling a frame must not end the loop that keeps the worker reachable.
                self.faults += 1
                log.exception("fault while serving %s", self.address)
                self._drop(f"fault of the gateway: {type(error).__name__}")
            if not self._closed:
                self.reconnects += 1
                await self._pause(backoff * random.uniform(0.7, 1.3))  # noqa: S311 - jitter
                backoff = min(backoff * 2, self._limits.backoff_last_s)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return

    async def _connect(self, expect: Address | None) -> None:
        """Dial and greet. Raises OSError, TimeoutError, ProtocolError, GreetingFailed."""
        async with asyncio.timeout(self._limits.connect_s):
            self._reader, writer = await open_stream(self.lease.endpoint, self._security)
        try:
            async with asyncio.timeout(self._limits.greeting_s):
                welcome = await greet(self._reader, writer, gateway=self._gateway, expect=expect)
            self._accept(welcome)
        except BaseException:
            writer.close()
            raise
        self._writer = writer
        self._heard = time.monotonic()
        self._stalled = False
        self.error = ""
        log.info("connected to %s (%s, %s)", self.address, self.role, self.state)

    def _accept(self, answer: Welcome) -> None:
        known = self.lease.address
        if answer.address.worker != known.worker or answer.address.epoch < known.epoch:
            raise GreetingFailed(None, f"{answer.address} answers where {known} was expected")
        if answer.address != known:
            self.lease = WorkerLease(
                address=answer.address,
                role=answer.role,
                node=self.lease.node,
                deployment=self.lease.deployment,
                revision=answer.revision,
                model=answer.model,
                endpoint=self.lease.endpoint,
                pid=0,
            )
        self.welcome = answer
        self.status = None

    async def _serve(self) -> None:
        """Hand out frames until the connection ends, or is silent for too long."""
        watch = asyncio.create_task(self._close_when_silent(), name=f"silence-{self.worker}")
        try:
            await self._read_frames()
        finally:
            watch.cancel()

    async def _close_when_silent(self) -> None:
        """One timer for the connection, not one for each frame."""
        while (left := self._limits.silence_s - self.heard_age_s) > 0:  # noqa: ASYNC110 - frames put it off
            await asyncio.sleep(left)
        self._drop(f"silent for {self._limits.silence_s:g} s")

    async def _read_frames(self) -> None:
        while True:
            frame = await read_frame(self._reader)
            if frame is None:
                raise ProtocolError("closed by the worker" if self.connected else self.error)
            self._heard = time.monotonic()
            match frame:
                case Tokens(deltas=deltas):
                    for delta in deltas:
                        self._deliver(delta.request_id, delta)
                case Scheduled() | Failed():
                    self._deliver(frame.request_id, frame)
                case Status():
                    self.status = frame
                    self.pending_tokens = 0
                    self._check_stall()
                case _:
                    raise ProtocolError(f"unexpected frame {type(frame).__name__}")

    def _deliver(self, request_id: RequestId, event: WorkerEvent) -> None:
        receiver = self._receivers.get(request_id)
        if receiver is not None:  # else cancelled meanwhile
            receiver(event)

    def _check_stall(self) -> None:
        """An engine that hangs keeps its connection: its requests are failed past a bound, once."""
        stalled = self.step_age_s > self._limits.stall_fail_s
        if stalled and not self._stalled:
            log.error("%s made no step for %.0f s; failing %d requests", self.address, self.step_age_s, self.requests)
            for request_id in list(self._receivers):
                self._send(Cancel(request_id=request_id, reason="engine stalled"))
            self._lose_all("its engine hangs")
        self._stalled = stalled

    def _drop(self, reason: str) -> None:
        if self._writer is not None:
            log.warning("lost %s: %s", self.address, reason)
            self._writer.close()
            self._writer = None
        self.error = reason
        self.status = None
        self.pending_tokens = 0
        self._lose_all(reason)

    def _lose_all(self, reason: str) -> None:
        receivers, self._receivers = self._receivers, {}
        for receiver in receivers.values():
            receiver(Lost(self.address, reason))
