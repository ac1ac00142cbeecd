"""Run a checkpoint on token ids and write its logits, to compare its numerics with another implementation.

The file gets `logits` [tokens, vocabulary] (the kept rows with `--prefill compact`), `expert_counts` [layers, experts]
and, with `--draft`, `draft_tokens` and `draft_confidence` after the last token.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from django.core.management.base import OutputWrapper

from controlplane.commands import CommandFailure
from workers.management.models_verbs.inspect import checkpoint_folder

if TYPE_CHECKING:
    from workers.models.safetensors_stream import LoadProgress


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="PATH", help="checkpoint folder, or the name of a model in the store")
    parser.add_argument("--ids", type=Path, required=True, metavar="FILE.json", help="a JSON list of token ids")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.safetensors", help="file to write")
    parser.add_argument(
        "--prefill",
        choices=("off", "mask", "compact"),
        default="off",
        help="rows before the prompt's tail in layers after the last KV source: off = run like the others (default), "
        "mask = run but hidden from the tail, compact = dropped",
    )
    parser.add_argument(
        "--cache-formats",
        choices=("float", "trained"),
        help="cache rows as floats, or in the packed formats the model was trained with "
        "(default: trained for a quantised checkpoint)",
    )
    parser.add_argument("--draft", action="store_true", help="draft after the last token, greedily")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float64"), default="float32")
    parser.add_argument("--keep-quantized", action="store_true", help="expand quantised weights in use, not on loading")
    parser.add_argument("--chunk", type=int, help="run the prompt in chunks of this many tokens")
    parser.add_argument("--threads", type=int, help="threads to compute with (default: torch's choice)")


def run(options: Namespace, out: OutputWrapper) -> None:
    folder = checkpoint_folder(options.model)
    ids = _read_ids(options.ids)
    for name in ("chunk", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise CommandFailure(f"--{name} must be at least 1")
    if not options.out.absolute().parent.is_dir() or options.out.is_dir():
        raise CommandFailure(f"{options.out} cannot be written: name a file in a folder that exists")

    import torch
    from safetensors.torch import save_file

    from workers.management.progress import ProgressLine
    from workers.models import numerics
    from workers.models.deepseek_v41.errors import InputError
    from workers.models.deepseek_v41.formats import CacheFormats
    from workers.models.deepseek_v41.model import Trim
    from workers.models.safetensors_index import CheckpointError

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    line = ProgressLine(out)

    def show(progress: LoadProgress) -> None:
        line.update("loading weights", progress.bytes_done, progress.bytes_total)

    wanted = numerics.NumericsOptions(
        trim=Trim(options.prefill),
        cache_formats=CacheFormats(options.cache_formats) if options.cache_formats else None,
        draft=options.draft,
        dtype=getattr(torch, options.dtype),
        keep_quantized=options.keep_quantized,
        chunk=options.chunk,
    )
    try:
        result = numerics.run(folder, ids, wanted, show)
    except (CheckpointError, InputError) as error:
        raise CommandFailure(str(error)) from error
    finally:
        line.close()
    temporary = options.out.with_name(f".{options.out.name}.tmp")
    tensors = {name: tensor.contiguous() for name, tensor in result.tensors.items()}
    try:
        save_file(tensors, temporary, metadata={"first_position": str(result.first_position)})
        temporary.rename(options.out)
    except OSError as error:
        raise CommandFailure(f"{options.out} cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())
    out.write(f"Wrote {options.out}: {shapes}")


def _read_ids(path: Path) -> list[int]:
    try:
        ids = json.loads(path.read_bytes())
    except OSError as error:
        raise CommandFailure(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CommandFailure(f"{path} is not JSON ({error}); write a list of token ids") from error
    if not isinstance(ids, list) or not all(isinstance(n, int) and not isinstance(n, bool) for n in ids):
        raise CommandFailure(f"{path} is not a list of whole numbers")
    if not ids:
        raise CommandFailure(f"{path} holds no token ids")
    return ids
