"""Readiness as the agent sees it: a protocol connection of its own to each worker it runs."""

from __future__ import annotations

import asyncio
import logging
import time

from workers import protocol
from workers.network.security import NO_SECURITY
from workers.network.streams import open_stream
from workers.protocol import Address, Hello, PeerKind, ProtocolError, Status, Welcome

logger = logging.getLogger(__name__)

CONNECT_S = 3.0
RETRY_S = 0.2
SILENCE_S = 10.0
"""Without a status for so long the connection is given up and made anew (a worker sends one a second)."""


class Probe:
    """Keeps a connection to one process (worker and epoch), by its unix socket, and what it last said."""

    def __init__(self, address: Address, endpoint: str, node: str) -> None:
        self.status: Status | None = None
        self.heard_at: float | None = None
        """Monotonic time of the last status; None until the first."""
        self._address = address
        self._endpoint = endpoint
        self._node = node
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        self._task.cancel()

    @property
    def silence_s(self) -> float | None:
        return None if self.heard_at is None else time.monotonic() - self.heard_at

    def excuse(self, seconds: float) -> None:
        """Whoever listens was away for so long: what was not heard meanwhile does not count as silence."""
        if self.heard_at is not None:
            self.heard_at = min(self.heard_at + seconds, time.monotonic())

    async def _run(self) -> None:
        while True:
            try:
                await self._watch()
            except (OSError, ProtocolError, TimeoutError) as error:
                logger.debug("probe of %s: %s", self._address, error)
            await asyncio.sleep(RETRY_S)

    async def _watch(self) -> None:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await open_stream(self._endpoint, NO_SECURITY)
        try:
            writer.write(protocol.encode(Hello(peer=f"agent {self._node}", kind=PeerKind.AGENT, expect=self._address)))
            async with asyncio.timeout(CONNECT_S):
                greeting = await protocol.read_frame(reader)
            if not isinstance(greeting, Welcome):
                raise ProtocolError(f"no welcome but {greeting}")
            while True:
                async with asyncio.timeout(SILENCE_S):
                    frame = await protocol.read_frame(reader)
                if frame is None:
                    return
                if isinstance(frame, Status):
                    self.status, self.heard_at = frame, time.monotonic()
        finally:
            writer.close()
