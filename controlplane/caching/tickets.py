"""Tickets by which warming passes through the inference API like any client, in a class and a tenant of its choice.

A ticket is signed with the installation's secret (as sessions are), names one job and expires after minutes; no key is
made for a job and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from django.core import signing

from controlplane.accounts.permissions import Principal, PrincipalKind, Scope

HEADER: Final = "x-galley-warming"
LIFE_S: Final = 900
_SALT: Final = "galley.caching.warming"


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    job: int
    tenant: str
    retention_class: str

    @property
    def principal(self) -> Principal:
        """May infer as the tenant, and nothing else."""
        return Principal(
            kind=PrincipalKind.KEY,
            id=f"warming-{self.job}",
            label=f"warming job {self.job}",
            tenant=self.tenant,
            scopes=frozenset({Scope.INFERENCE}),
        )


def issue(ticket: Ticket) -> str:
    return signing.dumps(msgspec.to_builtins(ticket), salt=_SALT)


def read(raw: str) -> Ticket | None:
    """None for what is forged, altered or expired."""
    try:
        return msgspec.convert(signing.loads(raw, salt=_SALT, max_age=LIFE_S), Ticket)
    except (signing.BadSignature, msgspec.ValidationError):
        return None


def of(headers: Mapping[str, str]) -> Ticket | None:
    """The ticket of a request; None without one, and for one that does not hold."""
    raw = headers.get(HEADER)
    return read(raw) if raw else None
