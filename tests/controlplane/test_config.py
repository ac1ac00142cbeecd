from __future__ import annotations

from pathlib import Path

import pytest

from controlplane import config
from controlplane.config import ConfigurationError, GalleySettings
from workers.network.security import LinkSecurity, Plaintext


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Sets variables for `read`."""
    return monkeypatch


def read() -> GalleySettings:
    return config.settings.__wrapped__()  # past its cache


def test_a_misspelt_setting_is_named(settings: pytest.MonkeyPatch) -> None:
    settings.setenv("GALLEY_PUBLIC_URI", "https://galley.example.org")
    with pytest.raises(ConfigurationError, match="GALLEY_PUBLIC_URI"):
        read()


@pytest.mark.parametrize(
    ("url", "origin", "host"),
    [
        ("https://galley.example.org", "https://galley.example.org", "galley.example.org"),
        ("https://Galley.Example.org:8443/", "https://galley.example.org:8443", "galley.example.org"),
        ("http://[2001:db8::1]:8000", "http://[2001:db8::1]:8000", "[2001:db8::1]"),
    ],
)
def test_the_public_url_is_an_origin_and_its_host_is_answered_to(
    settings: pytest.MonkeyPatch, url: str, origin: str, host: str
) -> None:
    settings.setenv("GALLEY_PUBLIC_URL", url)
    assert read().public_url == origin
    assert read().host_names == ["127.0.0.1", "localhost", "[::1]", host]


@pytest.mark.parametrize(
    "url",
    [
        "galley.example.org",
        "ftp://galley.example.org",
        "https://",
        "https://galley.example.org/app",
        "https://galley.example.org?x=1",
        "https://user@galley.example.org",
    ],
)
def test_a_public_url_that_is_none_is_refused(settings: pytest.MonkeyPatch, url: str) -> None:
    settings.setenv("GALLEY_PUBLIC_URL", url)
    with pytest.raises(ConfigurationError, match="public_url"):
        read()


@pytest.mark.parametrize("proxies", ["*", "localhost", "10.0.0.1/8", "10.0.0.1,everybody"])
def test_only_addresses_and_networks_are_trusted(settings: pytest.MonkeyPatch, proxies: str) -> None:
    settings.setenv("GALLEY_TRUSTED_PROXIES", proxies)
    with pytest.raises(ConfigurationError, match="trusted_proxies"):
        read()


def test_without_settings_nobody_is_trusted() -> None:
    assert GalleySettings().proxies == []
    assert GalleySettings().public_url == ""


def test_links_between_hosts_are_protected_as_the_settings_say(settings: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings.chdir(tmp_path)
    settings.setenv("GALLEY_LINK_SECRET_FILE", "secret")
    settings.setenv("GALLEY_LINK_PLAINTEXT", "loopback")
    security = LinkSecurity(secret_file=str(tmp_path / "secret"), plaintext=Plaintext.LOOPBACK)
    assert read().link_security == security  # worker processes start in another folder
    settings.setenv("GALLEY_LINK_PLAINTEXT", "sometimes")
    with pytest.raises(ConfigurationError, match="link_plaintext"):
        read()
