"""Add a model to the store: one that Galley knows by name, or a local folder in Hugging Face layout (Llama or V4.1)."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from django.core.management.base import OutputWrapper

from controlplane.commands import CommandFailure
from workers.home import Home
from workers.management.progress import ProgressLine
from workers.models.catalogue import CATALOGUE
from workers.models.store import ModelStore, StoreError


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", help=f"name in the store; without a path one of: {', '.join(sorted(CATALOGUE))}")
    parser.add_argument("path", nargs="?", type=Path, help="folder with config.json, safetensors and tokenizer.json")


def run(options: Namespace, out: OutputWrapper) -> None:
    # Imported here: they bring torch in, which no other verb should have to wait for.
    from workers.models.add_folder import add_folder
    from workers.models.add_package import add_package

    store = ModelStore(Home.from_env().models)
    line = ProgressLine(out)
    try:
        known = options.name in store
        if options.path is not None:
            manifest = add_folder(store, options.name, options.path, line.update)
        elif options.name in CATALOGUE:
            manifest = add_package(store, CATALOGUE[options.name], line.update)
        else:
            raise CommandFailure(
                f"{options.name} is not a model Galley can fetch ({', '.join(sorted(CATALOGUE))}); "
                "give the path of a local folder after the name"
            )
    except StoreError as error:
        raise CommandFailure(str(error)) from error
    finally:
        line.close()
    if known:
        out.write(f"{manifest.name} is already in the store.")
        return
    out.write(
        f"{manifest.name}: {manifest.parameters / 1e6:,.1f} million parameters, context {manifest.max_context:,}, "
        f"licence {manifest.licence}, weights {manifest.weights_fingerprint[:12]}, in {store.folder(manifest.name)}"
    )
