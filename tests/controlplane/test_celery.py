"""What no Celery process may wait for without end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from controlplane.celery import STATEMENT_TIMEOUT_S, app

PROBE = """
import django
django.setup()
from celery.signals import worker_init
import controlplane.celery
worker_init.send(sender=None)
from django.db import connection
with connection.cursor() as cursor:
    cursor.execute("SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout'")
    print(cursor.fetchone()[0])
"""


@pytest.mark.integration
def test_statements_of_workers_end(services: dict[str, str]) -> None:
    environment = {**os.environ, **services, "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == STATEMENT_TIMEOUT_S * 1000


def test_a_silent_broker_is_left_and_an_absent_one_waited_for() -> None:
    assert app.conf.broker_transport_options["socket_timeout"] > 0
    assert app.conf.broker_connection_max_retries is None
