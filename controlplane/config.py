"""Configuration, read once from the environment, typed and validated. Unknown `GALLEY_*` names are errors."""

from __future__ import annotations

import ipaddress
import os
import secrets
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from workers.home import Home
from workers.kvstore.settings import StoreSettings
from workers.network.security import LinkSecurity, Plaintext
from workers.spec import TransferChoice


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
    public_url: str = ""
    """`https://galley.example.org`: where browsers reach the pages behind a proxy. With `https`, cookies need TLS."""
    trusted_proxies: str = ""
    """Addresses and networks of proxies, separated by commas, whose `X-Forwarded-For` and `-Proto` are believed."""
    node: str = "local"
    """Name of this host's node agent."""
    log_level: str = "INFO"
    metrics_key: bool = False
    """Whether `/metrics` asks for an API key with the scope `management`."""
    worker_listen: str = ""
    """`tcp:10.0.0.5`: address that this host's workers bind; empty: unix sockets, one host only."""
    worker_ports: str = "7100-7199"
    """First and last port of theirs; each takes one."""
    worker_advertise: str = ""
    """Host under which others reach them, where that is not the one they bind."""
    worker_transfer: TransferChoice = TransferChoice.AUTO
    link_secret_file: str = ""
    link_tls_ca: str = ""
    link_tls_certificate: str = ""
    link_tls_key: str = ""
    link_tls_name: str = ""
    link_plaintext: Plaintext = Plaintext.NEVER
    kvstore: str = ""
    """Folder of the KV store, also a mount that all hosts share; empty: below the data folder; `off`: no store."""
    kvstore_create: bool = True
    """Whether an empty folder becomes a store; `false` for a shared mount, whose mount point may be empty."""
    kvstore_gib: int = Field(32, ge=0)
    """The store holds no more than this, whatever the retention policy says; 0: only policy and disk decide."""
    kernels: Literal["auto", "native", "eager"] = "auto"
    """Whether workers use compiled C++ kernels (`kernels.native`): where they can be built, always, or never."""
    kernels_cache: str = ""
    """Folder of what was compiled; empty: below the data folder."""
    database_url: str = Field("", validation_alias="DATABASE_URL")
    redis_url: str = Field("", validation_alias="REDIS_URL")
    port: int = Field(8000, validation_alias="PORT", ge=1, le=65535)

    @property
    def link_security(self) -> LinkSecurity:
        """What protects TCP between gateways, agents and workers."""
        return LinkSecurity(
            secret_file=_absolute(self.link_secret_file),
            tls_ca=_absolute(self.link_tls_ca),
            tls_certificate=_absolute(self.link_tls_certificate),
            tls_key=_absolute(self.link_tls_key),
            tls_name=self.link_tls_name,
            plaintext=self.link_plaintext,
        )

    @field_validator("public_url")
    @classmethod
    def _is_origin(cls, value: str) -> str:
        if not value:
            return value
        parts = urlsplit(value)
        bare = parts._replace(scheme="", netloc="", path=parts.path.rstrip("/")).geturl() == ""
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or not bare:
            raise ValueError(f"{value} is not a scheme and a host alone, as https://galley.example.org")
        return f"{parts.scheme}://{parts.netloc.lower()}"

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        for one in _listed(value):
            ipaddress.ip_network(one)  # its ValueError names what is wrong
        return value

    @property
    def proxies(self) -> list[str]:
        return _listed(self.trusted_proxies)

    @property
    def host_names(self) -> list[str]:
        """What the gateway answers to: `allowed_hosts`, and the host of `public_url`."""
        public = urlsplit(self.public_url).hostname
        return [*_listed(self.allowed_hosts), *([f"[{public}]" if ":" in public else public] if public else [])]


def _absolute(path: str) -> str:
    """For processes that start elsewhere; empty stays empty."""
    return str(Path(path).expanduser().resolve()) if path else ""


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


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


def store_settings() -> StoreSettings | None:
    """The KV store of this installation, as its workers open it; None where it is switched off."""
    wanted = settings()
    if wanted.kvstore == "off":
        return None
    root = Path(wanted.kvstore).expanduser().resolve() if wanted.kvstore else home().kvstore
    return StoreSettings(
        root=str(root),
        index_url=wanted.redis_url,
        create=wanted.kvstore_create,
        most_bytes=wanted.kvstore_gib << 30 or None,
    )


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
