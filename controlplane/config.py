"""Configuration, read once from the environment, typed and validated. Unknown `GALLEY_*` names are errors."""

from __future__ import annotations

import os
import secrets
from functools import cache
from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from workers.home import Home


class ConfigurationError(Exception):
    """An environment variable is wrong; the message names it."""


class GalleySettings(BaseSettings):
    """Every setting of the control plane. `GALLEY_X` sets `x`; `DATABASE_URL`, `REDIS_URL`, `PORT` have no prefix."""

    model_config = SettingsConfigDict(env_prefix="GALLEY_", extra="forbid")

    home: Path = Path("var")
    debug: bool = False
    allowed_hosts: str = "127.0.0.1,localhost,[::1]"
    """Host names that the gateway answers to, separated by commas."""
    host: str = "127.0.0.1"
    """Address the gateway binds."""
    node: str = "local"
    """Name of this host's node agent."""
    log_level: str = "INFO"
    metrics_key: bool = False
    """Whether `/metrics` asks for an API key with the scope `management`."""
    database_url: str = Field("", validation_alias="DATABASE_URL")
    redis_url: str = Field("", validation_alias="REDIS_URL")
    port: int = Field(8000, validation_alias="PORT", ge=1, le=65535)


@cache
def settings() -> GalleySettings:
    """The process's configuration. Raises ConfigurationError naming the variable."""
    known = {f"GALLEY_{name.upper()}" for name in GalleySettings.model_fields}
    unknown = sorted(name for name in os.environ if name.startswith("GALLEY_") and name not in known)
    if unknown:
        raise ConfigurationError(f"unknown setting {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    try:
        return GalleySettings()
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise ConfigurationError(f"bad setting: {problems}") from error


@cache
def home() -> Home:
    return Home(settings().home.expanduser().resolve())


def secret_key() -> str:
    """The installation's secret, made on first use (mode 0600): sessions and tenant salts derive from it."""
    path = home().secret_key
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    value = secrets.token_urlsafe(48)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(value + "\n")
    try:
        os.link(temporary, path)  # the first process wins, the others read its value
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    return path.read_text().strip()
