"""Progress on a terminal: one line that is redrawn; elsewhere a line per tenth."""

from __future__ import annotations

import time

from django.core.management.base import OutputWrapper

_REDRAW_S = 0.1


class ProgressLine:
    """Call `update(what, done, total)` as often as you like; `close()` ends the line."""

    def __init__(self, out: OutputWrapper) -> None:
        self._out = out
        self._terminal = out.isatty()
        self._drawn = 0.0
        self._last = ("", -1)
        self._open = False

    def update(self, what: str, done: int, total: int) -> None:
        """`done` of `total` in bytes."""
        percent = 100 * done // total if total else 0
        text = f"{what}: {done / 2**20:,.1f} of {total / 2**20:,.1f} MiB ({percent} %)"
        if self._terminal:
            now = time.monotonic()
            if now - self._drawn < _REDRAW_S and done < total:
                return
            self._drawn = now
            self._out.write(f"\r\x1b[K{text}", ending="")
            self._out.flush()
            self._open = True
        elif (what, percent // 10) != self._last:
            self._last = (what, percent // 10)
            self._out.write(text)
            self._out.flush()

    def close(self) -> None:
        if self._open:
            self._out.write("")
            self._open = False
