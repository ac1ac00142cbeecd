"""Progress on a terminal or in a log: what runs, how far it is, what it took. Standard library only."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

_QUIET_S = 5.0
"""Without a terminal, at most one line per step in this time."""


class Progress:
    """Steps that may run side by side. On a terminal the running ones are redrawn in place, else lines are appended."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self._lock = threading.RLock()
        self._running: list[Step] = []
        self._drawn = 0

    def step(self, name: str) -> Step:
        """Use as a context manager: done on leaving it, failed when an exception leaves it."""
        return Step(self, name)

    def line(self, text: str) -> None:
        """A line that stays."""
        with self._lock:
            self._erase()
            print(text, file=self._stream)
            self._draw()

    def _begin(self, step: Step) -> None:
        with self._lock:
            self._running.append(step)
            if self._live:
                self._redraw()
            else:
                print(f"  …  {step.name}", file=self._stream, flush=True)

    def _changed(self, step: Step) -> None:
        with self._lock:
            if self._live:
                self._redraw()
            elif time.monotonic() - step.said >= _QUIET_S:
                step.said = time.monotonic()
                print(f"  …  {step.name}: {step.detail}", file=self._stream, flush=True)

    def _end(self, step: Step, mark: str) -> None:
        with self._lock:
            self._running.remove(step)
            took = time.monotonic() - step.started
            detail = f": {step.detail}" if step.detail else ""
            self.line(f"  {mark}  {step.name}{detail} ({took:.1f} s)")

    def _redraw(self) -> None:
        self._erase()
        self._draw()

    def _erase(self) -> None:
        if self._live and self._drawn:
            self._stream.write(f"\x1b[{self._drawn}A\x1b[J")
        self._drawn = 0

    def _draw(self) -> None:
        if self._live:
            width = _columns()
            for step in self._running:
                text = f"  …  {step.name}" + (f": {step.detail}" if step.detail else "")
                self._stream.write(text[: width - 1] + "\n")
            self._drawn = len(self._running)
        self._stream.flush()


class Step:
    def __init__(self, progress: Progress, name: str) -> None:
        self.name = name
        self.detail = ""
        self.started = self.said = time.monotonic()
        self._progress = progress

    def update(self, detail: str) -> None:
        """How far it is, such as `42 of 93 packages`."""
        if detail != self.detail:
            self.detail = detail
            self._progress._changed(self)

    def __enter__(self) -> Step:
        self.started = self.said = time.monotonic()
        self._progress._begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress._end(self, "✓" if kind is None else "✗")


def _columns() -> int:
    import shutil

    return max(20, shutil.get_terminal_size((100, 24)).columns)
