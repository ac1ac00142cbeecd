"""Private authorities and the certificates they sign, as files."""

from __future__ import annotations

from pathlib import Path

import trustme

from workers.network.security import LinkSecurity

HOSTS = ("127.0.0.1", "127.0.0.2", "10.77.0.1", "10.77.0.2")


def secret_file(folder: Path, secret: str = "a secret of more than sixteen bytes") -> str:
    path = folder / f"secret-{abs(hash(secret))}"
    path.write_text(secret + "\n")
    return str(path)


def mutual_tls(folder: Path, name: str = "ca", *, hosts: tuple[str, ...] = HOSTS, authority: str = "") -> LinkSecurity:
    """TLS files of an authority of its own; `authority` has peers checked against another one's."""
    folder = folder / name
    folder.mkdir()
    ca = trustme.CA()
    certificate = ca.issue_cert(*hosts)
    ca.cert_pem.write_to_path(str(folder / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    (folder / "certificate.pem").write_bytes(chain)
    return LinkSecurity(
        tls_ca=authority or str(folder / "ca.pem"),
        tls_certificate=str(folder / "certificate.pem"),
        tls_key=str(folder / "key.pem"),
    )
