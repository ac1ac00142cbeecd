"""Refusals of services as one line for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from controlplane.caching.errors import CachingError
from controlplane.commands import CommandFailure
from workers.kvstore.files import RootForeign, RootMissing
from workers.kvstore.index import IndexUnavailable


@contextmanager
def explained() -> Iterator[None]:
    try:
        yield
    except (CachingError, IndexUnavailable, RootMissing, RootForeign, OSError) as error:
        raise CommandFailure(str(error)) from error
