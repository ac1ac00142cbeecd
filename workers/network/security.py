"""What protects a TCP connection, and what is refused (docs/operations/network.md)."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from workers.network.endpoints import is_loopback

SECRET_BYTES_LEAST = 16
"""Whoever records a handshake can try secrets at leisure: a short one would be found."""


class InsecureLink(OSError):
    """The settings do not allow this connection; the message names the setting."""


class AuthenticationFailed(ConnectionError):
    """The peer does not hold our secret, or is not the one we meant."""


class Plaintext(enum.StrEnum):
    """Where TCP without TLS and without a secret is allowed."""

    NEVER = "never"
    LOOPBACK = "loopback"
    ANYWHERE = "anywhere"


class LinkSecurity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One installation's: the same for its gateways, agents and workers, but for each host's own certificate.

    Files are read when a connection is made, so that they can be replaced while everything runs.
    """

    secret_file: str = ""
    """Proves that both ends belong to the installation. By itself it encrypts nothing."""
    tls_ca: str = ""
    """PEM file of the private authority whose certificates are accepted; switches TLS on."""
    tls_certificate: str = ""
    """PEM file of this host's chain: needed to listen, and without a secret to dial."""
    tls_key: str = ""
    tls_name: str = ""
    """The name in every worker's certificate; empty: the host that is dialled."""
    plaintext: Plaintext = Plaintext.NEVER

    @property
    def tls(self) -> bool:
        return bool(self.tls_ca)

    def check(self, host: str, *, listening: bool) -> None:
        """Raises InsecureLink where a TCP connection from or to `host` would not be protected as the settings ask."""
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise InsecureLink("a TLS certificate and its key go together: set both or neither")
        if self.tls_certificate and not self.tls:
            raise InsecureLink("a TLS certificate needs the authority that peers are checked against (tls_ca)")
        if self.tls:
            if not self.tls_certificate and (listening or not self.secret_file):
                raise InsecureLink("TLS needs a certificate and a key here (tls_certificate, tls_key)")
        elif not self.secret_file and not self._plaintext_allowed(host):
            raise InsecureLink(
                f"TCP to {host} needs TLS (tls_ca, tls_certificate, tls_key) or a shared secret (secret_file); without "
                f"either it is refused, as `plaintext` is {self.plaintext.value}"
            )

    def read_secret(self) -> bytes:
        """The shared secret, empty where none is used. Raises InsecureLink for one that is missing or too short."""
        if not self.secret_file:
            return b""
        try:
            secret = Path(self.secret_file).read_bytes().strip()
        except OSError as error:
            raise InsecureLink(f"the shared secret cannot be read: {error}") from error
        if len(secret) < SECRET_BYTES_LEAST:
            raise InsecureLink(f"the shared secret in {self.secret_file} is shorter than {SECRET_BYTES_LEAST} bytes")
        return secret

    def _plaintext_allowed(self, host: str) -> bool:
        if self.plaintext is Plaintext.LOOPBACK:
            return is_loopback(host)
        return self.plaintext is Plaintext.ANYWHERE


NO_SECURITY = LinkSecurity()
"""Unix sockets only: every TCP connection is refused."""
