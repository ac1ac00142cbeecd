"""TLS 1.3 with a private authority, certificates read again when their files change."""

from __future__ import annotations

import hashlib
import logging
import os
import ssl
import threading
from pathlib import Path

from workers.network.security import InsecureLink, LinkSecurity

logger = logging.getLogger(__name__)


class Contexts:
    """The TLS contexts of one process: how it listens and how it dials. Usable from every thread."""

    def __init__(self, security: LinkSecurity) -> None:
        self._security = security
        self._lock = threading.Lock()
        self._made: dict[bool, tuple[tuple[object, ...], tuple[ssl.SSLContext, bytes]]] = {}

    def server(self) -> tuple[ssl.SSLContext, bytes]:
        """The context, and the SHA-256 of its certificate. Raises InsecureLink where the files cannot be used."""
        return self._get(server=True)

    def client(self) -> ssl.SSLContext:
        """The same, without the certificate."""
        return self._get(server=False)[0]

    def _get(self, *, server: bool) -> tuple[ssl.SSLContext, bytes]:
        with self._lock:
            before = self._made.get(server)
            try:
                version = self._version()
                if before is not None and before[0] == version:
                    return before[1]
                made = self._make(server=server), self._own_certificate()
            except (OSError, ValueError) as error:
                if before is None:
                    raise InsecureLink(f"TLS files cannot be used: {error}") from error
                # Half-way through a replacement of the files: the pair that was good still is.
                logger.error("TLS files cannot be read again, the earlier ones are used: %s", error)
                return before[1]
            self._made[server] = (version, made)
            return made

    def _version(self) -> tuple[object, ...]:
        names = (self._security.tls_ca, self._security.tls_certificate, self._security.tls_key)
        states = [os.stat(name) for name in names if name]
        return tuple((state.st_mtime_ns, state.st_size, state.st_ino) for state in states)

    def _own_certificate(self) -> bytes:
        """Raises OSError, ValueError."""
        if not self._security.tls_certificate:
            return b""
        pem = Path(self._security.tls_certificate).read_text()
        start = pem.index("-----BEGIN CERTIFICATE-----")
        end = pem.index("-----END CERTIFICATE-----", start) + len("-----END CERTIFICATE-----")
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem[start:end])).digest()

    def _make(self, *, server: bool) -> ssl.SSLContext:
        security = self._security
        purpose = ssl.Purpose.CLIENT_AUTH if server else ssl.Purpose.SERVER_AUTH
        context = ssl.create_default_context(purpose, cafile=security.tls_ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if security.tls_certificate:
            context.load_cert_chain(security.tls_certificate, security.tls_key)
        if server:  # with a secret the client proves itself by that
            context.verify_mode = ssl.CERT_OPTIONAL if security.secret_file else ssl.CERT_REQUIRED
        return context


def peer_certificate(connection: ssl.SSLSocket | ssl.SSLObject) -> bytes:
    """SHA-256 of the certificate that the other end showed."""
    return hashlib.sha256(connection.getpeercert(binary_form=True) or b"").digest()
