"""Write a random v41-nano checkpoint: all of V4.1's mechanisms in eight million parameters, official layout.

`--wide` writes one of the same layers with 35 million.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from django.core.management.base import OutputWrapper

from controlplane.commands import CommandFailure


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("out_dir", metavar="OUT_DIR", type=Path, help="folder to write; must be new or empty")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same bytes (default 0)")
    parser.add_argument("--wide", action="store_true", help="the same layers in 35 million parameters")


def run(options: Namespace, out: OutputWrapper) -> None:
    folder = options.out_dir.expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CommandFailure(f"{folder} is not an empty folder; name a new one")
    from workers.models.deepseek_v41.nano import NANO, WIDE, make_nano

    try:
        make_nano(folder, options.seed, WIDE if options.wide else NANO)
    except OSError as error:
        raise CommandFailure(f"{folder} cannot be written: {error.strerror}") from error
    kind = "v41-nano, wide," if options.wide else "v41-nano"
    out.write(f"Wrote a random {kind} to {folder}; `manage.py models inspect {folder}` shows what is in it.")
