"""Tool calls in the text of ChatML models: `<tool_call>` and a JSON object, told apart from the answer as it comes.

The grammar (`grammars.Hermes`) sees to it that a call has exactly this form. An answer that is cut off by its limit may
end inside one; what has come of the arguments is what is reported.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
_HEAD = re.compile(r'\s*\{\s*"name":\s*("(?:[^"\\]|\\.)*"),\s*"arguments":\s*')


@dataclass(slots=True)
class ToolDelta:
    """News of one call. `name` and `id` are set on its first; `arguments` is a further part of the JSON."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Split:
    text: str
    tools: list[ToolDelta]


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class ToolSplitter:
    """Text in pieces of any size; the same calls and the same text come out."""

    def __init__(self) -> None:
        self.calls = 0
        self._held = ""
        self._inside = False
        self._arguments: _JsonEnd | None = None

    def push(self, text: str) -> Split:
        self._held += text
        out = Split("", [])
        while self._advance(out):
            pass
        return out

    def finish(self) -> Split:
        """What was held back for a call that never began."""
        held, self._held = self._held, ""
        unfinished = self._inside or self._arguments or (self.calls and not held.strip())
        return Split("" if unfinished else held, [])

    def _advance(self, out: Split) -> bool:
        """One transition; False where more text is needed."""
        if self._arguments is not None:
            return self._in_arguments(self._arguments, out)
        if self._inside:
            return self._in_call(out)
        return self._in_text(out)

    def _in_text(self, out: Split) -> bool:
        before, mark, rest = self._held.partition(OPEN)
        if mark:
            out.text += before if before.strip() or not self.calls else ""
            self._held, self._inside = rest, True
            return True
        keep = next((n for n in range(min(len(OPEN) - 1, len(before)), 0, -1) if OPEN.startswith(before[-n:])), 0)
        if self.calls and not before[: len(before) - keep].strip():
            return False  # perhaps the line break between two calls
        out.text += before[: len(before) - keep]
        self._held = before[len(before) - keep :]
        return False

    def _in_call(self, out: Split) -> bool:
        """Between the mark and the arguments, or behind them."""
        head = _HEAD.match(self._held)
        if head is not None:
            out.tools.append(ToolDelta(self.calls, id=new_call_id(), name=json.loads(head[1])))
            self._held = self._held[head.end() :]
            self._arguments = _JsonEnd()
            return True
        _, mark, rest = self._held.partition(CLOSE)
        if mark:
            self._held, self._inside = rest, False
        return bool(mark)

    def _in_arguments(self, end: _JsonEnd, out: Split) -> bool:
        if not end.begun:
            self._held = self._held.lstrip()
        if not self._held:
            return False
        used = end.scan(self._held)
        out.tools.append(ToolDelta(self.calls, arguments=self._held[:used]))
        self._held = self._held[used:]
        if not end.reached:
            return False
        self._arguments = None
        self.calls += 1
        return True


class _JsonEnd:
    """Finds where one JSON object ends."""

    def __init__(self) -> None:
        self.begun = False
        self.reached = False
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def scan(self, text: str) -> int:
        """Characters of `text` that belong to the object."""
        self.begun = True
        for at, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = character == "\\"
                self._quoted = character != '"'
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self.reached = True
                    return at + 1
        return len(text)
