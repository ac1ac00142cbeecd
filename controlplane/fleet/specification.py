"""What a revision fixes, in canonical form, and the hash that workers are grouped by.

Replicas are not part of it: scaling starts and stops workers of the same revision, which exchange blocks with the
ones that run (docs/decisions/0006-fleet-and-telemetry.md).
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from workers.protocol import Role
from workers.spec import EngineSettings

DOMAIN = b"galley.revision.v1\0"


class ModelRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    weights_fingerprint: str
    tokenizer_fingerprint: str


class RevisionSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: ModelRef
    engine: EngineSettings
    profile: str | None = None
    """Name of the hardware profile that its workers need; None runs anywhere."""
    ranks: dict[Role, int] = {}
    """Processes per replica, where it is not one."""
    drain_deadline_s: float = 30.0

    def to_json(self) -> dict[str, Any]:
        built: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return built

    @classmethod
    def from_json(cls, value: Any) -> RevisionSpec:
        """Raises msgspec.ValidationError: rows are written from a RevisionSpec only."""
        return msgspec.convert(value, cls, strict=False)

    def hash(self) -> str:
        """SHA-256 over JSON with sorted keys, 64 hexadecimal digits; equal in every process and release."""
        return hashlib.sha256(DOMAIN + msgspec.json.encode(self.to_json(), order="sorted")).hexdigest()
