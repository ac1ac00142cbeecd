"""Threads with a bounded queue. Threads, not asyncio: file reads have no other form, they and the checksums release the
interpreter lock, and the engine that calls has no event loop."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class PoolFull(Exception):
    """The queue is at its bound: the caller goes on without."""


class BoundedPool:
    """Daemon threads: one that hangs in a dead mount never keeps the process from ending."""

    def __init__(self, name: str, *, threads: int, bound: int) -> None:
        self._name = name
        self._queue: queue.Queue[tuple[Callable[[], Any], Future[Any], float] | None] = queue.Queue(bound)
        self._busy = 0
        self._lock = threading.Lock()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"kvstore-{name}-{n}", daemon=True) for n in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], T], *, deadline: float) -> Future[T]:
        """Run `work` on a thread. Raises PoolFull; cancelled when `deadline` (monotonic) passes in the queue."""
        future: Future[T] = Future()
        try:
            if self._closed:
                raise queue.Full
            self._queue.put_nowait((work, future, deadline))
        except queue.Full:
            raise PoolFull(f"{self._name}: {self._queue.qsize()} pieces of work are waiting") from None
        return future

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    @property
    def busy(self) -> int:
        return self._busy

    def close(self, timeout_s: float) -> None:
        """Finish what is queued and end the threads, for at most `timeout_s`."""
        self._closed = True
        until = time.monotonic() + timeout_s
        with contextlib.suppress(queue.Full):
            for _ in self._threads:
                self._queue.put(None, timeout=max(0.0, until - time.monotonic()))
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, future, deadline = item
            if time.monotonic() > deadline:
                future.cancel()
                continue
            if not future.set_running_or_notify_cancel():
                continue
            with self._lock:
                self._busy += 1
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001 - handed to whoever waits for the future
                future.set_exception(error)
            finally:
                with self._lock:
                    self._busy -= 1
