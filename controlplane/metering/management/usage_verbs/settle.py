"""Bring what is on its way into the ledger now: the usage stream, and journals of gateways that died on this host."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import redis
from django.core.management.base import OutputWrapper

from controlplane import valkey
from controlplane.commands import CommandFailure
from controlplane.config import home, settings
from controlplane.metering.settling import settle_journals, settle_stream


def add_arguments(parser: ArgumentParser) -> None:
    pass


def run(options: Namespace, out: OutputWrapper) -> None:
    try:
        with valkey.client(settings().redis_url) as client:
            streamed = settle_stream(client)
            recovered = settle_journals(client, home().journal)
    except redis.RedisError as error:
        raise CommandFailure(f"Valkey does not answer ({error}); what is on its way stays where it is") from error
    out.write(f"{streamed} requests from the stream, {recovered} from journals of gateways that died")
