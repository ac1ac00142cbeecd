"""Show what a checkpoint holds: parameters, bytes per card, what is missing. Reads headers only, never weights."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path

from django.core.management.base import OutputWrapper

from controlplane.commands import CommandFailure
from workers.home import Home
from workers.models.inspection import CardLayout, Inspection, Part, default_split, inspect
from workers.models.safetensors_index import CheckpointError
from workers.models.store import ModelStore, StoreError

SHOWN = 20


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="PATH", help="checkpoint folder, or the name of a model in the store")
    parser.add_argument("--cards", type=int, default=1, help="cards that the weights are spread over (default 1)")
    parser.add_argument(
        "--split",
        metavar="PARTS",
        help="parts to split over the cards, separated by commas, or `none` "
        "(default: experts,engram for V4.1; attention,feed_forward for Llama)",
    )
    parser.add_argument("--host", metavar="PARTS", default="", help="parts kept in host memory, such as engram")
    parser.add_argument(
        "--redundant-experts", type=int, default=0, help="replicas per layer beside one of each expert (default 0)"
    )
    parser.add_argument("--strict", action="store_true", help="fail when a tensor is missing, unexpected or misshapen")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Namespace, out: OutputWrapper) -> None:
    if options.cards < 1 or options.redundant_experts < 0:
        raise CommandFailure("--cards must be at least 1 and --redundant-experts at least 0")
    folder = checkpoint_folder(options.model)
    try:
        found = inspect(folder)
        layout = CardLayout(
            cards=options.cards,
            split=_names(options.split) if options.split is not None else _default_split(found, options),
            host=_names(options.host),
            redundant_experts=options.redundant_experts,
        )
        parts = found.parts(layout)
    except CheckpointError as error:
        raise CommandFailure(str(error)) from error
    except ValueError as error:
        raise CommandFailure(f"--split or --host: {error}") from error
    if options.json:
        out.write(json.dumps(_as_json(found, parts, layout)))
    else:
        _print(found, parts, layout, out)
    if options.strict and found.problems:
        raise CommandFailure(f"{folder} does not fit its config.json: {len(found.problems)} problems, listed above")


def checkpoint_folder(model: str) -> Path:
    """A folder as it is, else the store's folder of that name. Raises `CommandFailure` when there is neither."""
    path = Path(model).expanduser()
    if path.exists():
        return path
    store = ModelStore(Home.from_env().models)
    try:
        if model in store:
            return store.folder(model)
    except StoreError:
        pass  # not even a possible name: it was meant as a path
    raise CommandFailure(f"{model} is neither a folder nor a model in the store; `manage.py models list` shows those")


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip() and name.strip() != "none")


def _default_split(found: Inspection, options: Namespace) -> frozenset[str]:
    have = {tensor.part for tensor in found.tensors}
    return frozenset(default_split(found.family)) & have - _names(options.host)


def _as_json(found: Inspection, parts: list[Part], layout: CardLayout) -> dict[str, object]:
    return {
        "folder": str(found.folder),
        "family": found.family,
        "layers": found.layers,
        "files": found.files,
        "parameters": found.parameters,
        "bytes": found.nbytes,
        "cards": layout.cards,
        "bytes_per_card": sum(part.card_bytes for part in parts),
        "parts": [asdict(part) for part in parts],
        "missing": found.missing,
        "unexpected": found.unexpected,
        "misshapen": found.misshapen,
        "notes": found.notes,
    }


def _print(found: Inspection, parts: list[Part], layout: CardLayout, out: OutputWrapper) -> None:
    tensors = f"{len(found.tensors):,} tensors in {found.files} files"
    out.write(f"{found.folder}: {found.family}, {found.layers} layers, {tensors}")
    header = f"{'PART':<14} {'PARAMETERS':>18} {'BYTES':>18} {'PER CARD (of ' + str(layout.cards) + ')':>20}  "
    out.write(header.rstrip())
    for part in parts:
        where = "host" if part.name in layout.host else "split" if part.name in layout.split else "on each"
        out.write(f"{part.name:<14} {part.parameters:>18,} {part.nbytes:>18,} {part.card_bytes:>20,}  {where}")
    card = sum(part.card_bytes for part in parts)
    out.write(f"{'total':<14} {found.parameters:>18,} {found.nbytes:>18,} {card:>20,}")
    for note in found.notes:
        out.write(f"note: {note}")
    for problem in found.problems[:SHOWN]:
        out.write(problem)
    if len(found.problems) > SHOWN:
        out.write(f"and {len(found.problems) - SHOWN:,} more (all of them with --json)")
    if not found.problems:
        out.write("Nothing is missing.")
