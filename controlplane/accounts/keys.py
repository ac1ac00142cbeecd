"""The form of an API key: `gk-<8 characters>-<43 characters>`. The first group names it, the whole opens the door.

A key carries 256 random bits, so one SHA-256 keeps it: there is nothing to guess, and lookups are by the full hash.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Final, NewType

KeyHash = NewType("KeyHash", str)
"""SHA-256 of the whole key, 64 hexadecimal digits. Safe in memory, in the database and on the invalidation channel."""

_PREFIX_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"
_FORM: Final = re.compile(r"gk-[a-z0-9]{8}-[A-Za-z0-9_-]{43}")


def generate() -> tuple[str, str]:
    """A new key and its prefix."""
    prefix = "".join(secrets.choice(_PREFIX_ALPHABET) for _ in range(8))
    return f"gk-{prefix}-{secrets.token_urlsafe(32)}", prefix


def digest(raw: str) -> KeyHash | None:
    """The hash that a key is kept and found by, or None where `raw` cannot be a key (nothing need be looked up)."""
    if not _FORM.fullmatch(raw):
        return None
    return KeyHash(hashlib.sha256(raw.encode("ascii")).hexdigest())
