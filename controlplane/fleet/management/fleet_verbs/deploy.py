"""Deploy a model of the store."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import msgspec
from django.core.exceptions import ValidationError
from django.core.management.base import OutputWrapper

from controlplane.accounts.permissions import SYSTEM
from controlplane.commands import CommandFailure
from controlplane.fleet import services
from controlplane.fleet.errors import FleetError
from workers.spec import EngineSettings


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="name of the deployment")
    parser.add_argument("model", help="name in the model store")
    parser.add_argument("--alias", action="append", default=[], help="further name for clients; may be repeated")
    parser.add_argument("--prefill", type=int, default=0, help="prefill replicas")
    parser.add_argument("--decode", type=int, default=0, help="decode replicas")
    parser.add_argument("--both", type=int, default=0, help="replicas that do both")
    parser.add_argument("--engine", default="{}", metavar="JSON", help='engine settings, e.g. {"pool_blocks": 4096}')


def run(options: Namespace, out: OutputWrapper) -> None:
    prefill, decode = options.prefill, options.decode
    if not (prefill or decode or options.both):
        prefill = decode = 1
    try:
        deployment = services.deployment_create(
            actor=SYSTEM,
            name=options.name,
            model=options.model,
            prefill_replicas=prefill,
            decode_replicas=decode,
            both_replicas=options.both,
            engine=msgspec.json.decode(options.engine, type=EngineSettings),
            aliases=options.alias,
            reason="manage.py fleet deploy",
        )
    except msgspec.DecodeError as error:
        raise CommandFailure(f"--engine: {error}") from error
    except FleetError as error:
        raise CommandFailure(str(error)) from error
    except ValidationError as error:
        raise CommandFailure("; ".join(error.messages)) from error
    out.write(f"{deployment.name} is deployed; `manage.py fleet list` shows its workers.")
