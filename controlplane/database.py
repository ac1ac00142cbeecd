"""Giving PostgreSQL connections back before the request is over."""

from __future__ import annotations

from django.db import connections


def release_connections() -> None:
    """Close this thread's connections that are in no transaction: they go back to the pool.

    Django does so at the end of a request. A streamed answer may take minutes, and its thread would hold a connection
    all that time for a query at its beginning.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
