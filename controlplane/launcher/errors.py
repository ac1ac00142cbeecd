"""What goes wrong and what to do about it: the launcher's only way to fail in front of a person."""

from __future__ import annotations


class LaunchError(Exception):
    """One line of what happened, one line of what to do. Printed without a traceback; exit status 1."""

    def __init__(self, what: str, action: str) -> None:
        super().__init__(what)
        self.what = what
        self.action = action

    def __str__(self) -> str:
        return f"{self.what}\n  {self.action}"
