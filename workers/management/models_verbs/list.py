"""List the models in the store."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import msgspec
from django.core.management.base import OutputWrapper

from workers.home import Home
from workers.models.catalogue import CATALOGUE
from workers.models.store import ModelStore


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Namespace, out: OutputWrapper) -> None:
    models = ModelStore(Home.from_env().models).list()
    if options.json:
        out.write(msgspec.json.encode(models).decode())
        return
    if not models:
        out.write(f"No models yet. `manage.py models add NAME` fetches one of: {', '.join(sorted(CATALOGUE))}")
        return
    out.write(f"{'NAME':<28} {'FAMILY':<12} {'PARAMETERS':>12} {'CONTEXT':>9} {'ON DISK':>10}  LICENCE")
    for model in models:
        manifest = model.manifest
        if manifest is None:
            out.write(f"{model.name:<28} unusable: {model.problem}")
            continue
        out.write(
            f"{model.name:<28} {manifest.family:<12} {manifest.parameters / 1e6:>10,.1f} M {manifest.max_context:>9,} "
            f"{model.bytes_on_disk / 2**20:>6,.0f} MiB  {manifest.licence}"
        )
