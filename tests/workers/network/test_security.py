"""What the settings allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.certificates import secret_file
from workers.network.security import InsecureLink, LinkSecurity, Plaintext

SECRET = LinkSecurity(secret_file="s")
MUTUAL = LinkSecurity(tls_ca="a", tls_certificate="c", tls_key="k")
AUTHORITY_AND_SECRET = LinkSecurity(tls_ca="a", secret_file="s")


@pytest.mark.parametrize(
    ("security", "host", "listening"),
    [
        (SECRET, "10.0.0.5", True),
        (SECRET, "10.0.0.5", False),
        (MUTUAL, "10.0.0.5", True),
        (MUTUAL, "10.0.0.5", False),
        (AUTHORITY_AND_SECRET, "10.0.0.5", False),
        (LinkSecurity(plaintext=Plaintext.LOOPBACK), "127.0.0.2", True),
        (LinkSecurity(plaintext=Plaintext.ANYWHERE), "10.0.0.5", True),
    ],
)
def test_allowed(security: LinkSecurity, host: str, listening: bool) -> None:
    security.check(host, listening=listening)


@pytest.mark.parametrize("listening", [True, False])
@pytest.mark.parametrize(
    ("security", "host"),
    [
        (LinkSecurity(), "10.0.0.5"),
        (LinkSecurity(), "127.0.0.1"),
        (LinkSecurity(plaintext=Plaintext.LOOPBACK), "10.0.0.5"),
        (LinkSecurity(plaintext=Plaintext.LOOPBACK), "0.0.0.0"),
        (LinkSecurity(plaintext=Plaintext.LOOPBACK), "localhost.example"),
        (LinkSecurity(tls_ca="a"), "10.0.0.5"),
        (LinkSecurity(tls_certificate="c", tls_key="k"), "10.0.0.5"),
        (LinkSecurity(tls_ca="a", tls_certificate="c", secret_file="s"), "10.0.0.5"),
    ],
)
def test_refused(security: LinkSecurity, host: str, listening: bool) -> None:
    with pytest.raises(InsecureLink):
        security.check(host, listening=listening)


def test_listening_with_tls_needs_a_certificate_whatever_the_secret() -> None:
    with pytest.raises(InsecureLink, match="certificate"):
        AUTHORITY_AND_SECRET.check("10.0.0.5", listening=True)


def test_secrets(tmp_path: Path) -> None:
    assert LinkSecurity().read_secret() == b""
    assert LinkSecurity(secret_file=secret_file(tmp_path, "0123456789abcdef")).read_secret() == b"0123456789abcdef"
    with pytest.raises(InsecureLink, match="shorter"):
        LinkSecurity(secret_file=secret_file(tmp_path, "0123456789abcde")).read_secret()
    with pytest.raises(InsecureLink, match="cannot be read"):
        LinkSecurity(secret_file=str(tmp_path / "missing")).read_secret()
