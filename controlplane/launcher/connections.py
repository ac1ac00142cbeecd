"""PostgreSQL and Valkey or Redis that somebody else runs: can we reach them? (`DATABASE_URL`, `REDIS_URL`)"""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit

import psycopg
import redis

from controlplane.launcher.errors import LaunchError

_TIMEOUT_S = 5
OLDEST_POSTGRES = 140000
"""`server_version_num`: what Django 5.2 supports."""


def require_database(url: str) -> None:
    """Raises LaunchError, without the password, where it cannot be used."""
    shown = _without_password(url)
    try:
        with psycopg.connect(url, connect_timeout=_TIMEOUT_S) as connection:
            version = connection.info.server_version
    except psycopg.Error as error:
        raise LaunchError(
            f"DATABASE_URL ({shown}) cannot be reached: {' '.join(str(error).split())}",
            "Start that PostgreSQL or correct the URL; without DATABASE_URL, Galley runs one of its own.",
        ) from None
    if version < OLDEST_POSTGRES:
        raise LaunchError(
            f"DATABASE_URL ({shown}) is PostgreSQL {version // 10000}",
            f"PostgreSQL {OLDEST_POSTGRES // 10000} or newer is needed.",
        )


def require_redis(url: str) -> None:
    """Raises LaunchError, without the password, where it cannot be used."""
    try:
        client = redis.Redis.from_url(url, socket_connect_timeout=_TIMEOUT_S, socket_timeout=_TIMEOUT_S)
        with contextlib.closing(client):
            client.ping()
    except (redis.RedisError, ValueError) as error:
        raise LaunchError(
            f"REDIS_URL ({_without_password(url)}) cannot be reached: {error}",
            "Start that Valkey or Redis or correct the URL; without REDIS_URL, Galley runs one of its own.",
        ) from None


def _without_password(url: str) -> str:
    """`scheme://user@host:port/name`: what may be shown."""
    try:
        parts = urlsplit(url)
        user = f"{parts.username}@" if parts.username else ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "not a URL"
    return f"{parts.scheme}://{user}{parts.hostname or ''}{port}{parts.path}"
