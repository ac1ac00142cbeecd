"""What goes wrong and what to do about it: the launcher's only way to fail in front of a person."""

from __future__ import annotations

import errno


class LaunchError(Exception):
    """One line of what happened, one line of what to do. Printed without a traceback; exit status 1."""

    def __init__(self, what: str, action: str) -> None:
        super().__init__(what)
        self.what = what
        self.action = action

    def __str__(self) -> str:
        return f"{self.what}\n  {self.action}"


def from_os_error(error: OSError) -> LaunchError:
    """An error of the operating system that nobody expected, in the same two lines."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return LaunchError(
            f"no space left on the disk{where}", "Free some space, or set GALLEY_HOME to a folder on another disk."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return LaunchError(
            f"not allowed to write{where}: {error.strerror}",
            "Run as the user who owns the folder, or set GALLEY_HOME to a folder of your own.",
        )
    return LaunchError(f"{error.strerror or error}{where}", "See that the disk and the folder are in order.")
