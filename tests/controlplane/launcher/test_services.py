"""The embedded services, for real: they start, keep their data over a restart, and leave nothing behind."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from controlplane.launcher.process import ProcessRecord
from controlplane.launcher.services import EmbeddedServices
from controlplane.running import publish_services, use_running_services, withdraw_services
from workers.home import Home

pytestmark = pytest.mark.integration


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="galley-services-") as folder:
        yield Home(Path(folder))


def test_data_survives_a_restart_and_nothing_is_left(home: Home) -> None:
    with EmbeddedServices(home) as services:
        first_urls = services.postgres.url, services.valkey.url
        records = [running.record for running in services._running]
        with psycopg.connect(services.postgres.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        with redis.Redis.from_url(services.valkey.url) as client:
            client.set("kept", "42")
    assert [record.process() for record in records if record is not None] == [None, None]

    with EmbeddedServices(home) as services:
        assert (services.postgres.url, services.valkey.url) == first_urls
        with psycopg.connect(services.postgres.url) as connection:
            assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
        with redis.Redis.from_url(services.valkey.url) as client:
            assert client.get("kept") == b"42"


def test_nobody_else_gets_in(home: Home) -> None:
    with EmbeddedServices(home) as services:
        assert stat.S_IMODE(services.postgres.sockets.stat().st_mode) == 0o700
        port = redis.Redis.from_url(services.valkey.url).connection_pool.connection_kwargs["port"]
        stranger = redis.Redis(host="127.0.0.1", port=port)
        with pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_a_foreign_postgres_is_recognised(home: Home) -> None:
    with EmbeddedServices(home) as services:
        ours = services._running[0].record
        assert isinstance(ours, ProcessRecord)
        assert services.postgres.foreign_pid(ours) is None
        assert services.postgres.foreign_pid(None) == ours.pid
    assert services.postgres.foreign_pid(None) is None


def test_a_command_beside_make_up_finds_the_services(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.state.mkdir()
    publish_services(home, database_url="postgresql://one", redis_url="redis://two")
    assert stat.S_IMODE((home.state / "services.json").stat().st_mode) == 0o600
    monkeypatch.setenv("GALLEY_HOME", str(home.root))
    monkeypatch.delenv("DATABASE_URL")
    monkeypatch.setenv("REDIS_URL", "redis://named")
    use_running_services()
    assert os.environ["DATABASE_URL"] == "postgresql://one"
    assert os.environ["REDIS_URL"] == "redis://named"
    withdraw_services(home)
    monkeypatch.delenv("DATABASE_URL")
    use_running_services()
    assert "DATABASE_URL" not in os.environ
