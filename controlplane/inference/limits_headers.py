"""What clients learn of their limits: OpenAI's `x-ratelimit-*`, and Anthropic's headers on the routes of Messages."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Final

from controlplane.inference.limits_subjects import NO_WINDOWS, Window, Windows

ANTHROPIC_PATHS: Final = ("/v1/messages", "/anthropic/")

_windows: ContextVar[Windows] = ContextVar("galley_limit_windows", default=NO_WINDOWS)


def note_windows(windows: Windows) -> None:
    """For the response of the request that this context handles, whatever it will be."""
    _windows.set(windows)


def limit_headers(path: str) -> dict[str, str]:
    """Of the request that this context handles; empty where nothing limits it, or it was not admitted yet."""
    windows = _windows.get()
    headers: dict[str, str] = {}
    for kind, window in (("requests", windows.requests), ("tokens", windows.tokens)):
        if window is None:
            continue
        headers[f"x-ratelimit-limit-{kind}"] = str(window.limit)
        headers[f"x-ratelimit-remaining-{kind}"] = str(window.remaining)
        headers[f"x-ratelimit-reset-{kind}"] = duration(window.reset_s)
        if path.startswith(ANTHROPIC_PATHS):
            headers.update(_anthropic(kind, window))
    return headers


def _anthropic(kind: str, window: Window) -> dict[str, str]:
    full_again = datetime.now(UTC) + timedelta(seconds=window.reset_s)
    return {
        f"anthropic-ratelimit-{kind}-limit": str(window.limit),
        f"anthropic-ratelimit-{kind}-remaining": str(window.remaining),
        f"anthropic-ratelimit-{kind}-reset": full_again.isoformat(timespec="seconds").replace("+00:00", "Z"),
    }


def duration(seconds: float) -> str:
    """As OpenAI writes it: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{rest:.0f}s" if minutes else f"{rest:.3g}s"
