"""From a checkpoint folder to a model: strict, tensor by tensor, never two copies of the weights at once.

Everything is checked on the headers before the first payload is read. Quantised matrices are dequantised to the model's
dtype or kept as they are and expanded in use; Engram tables, by far the largest tensors, are always kept.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.quantization import Weight, WeightFormat, decode_weight
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.errors import LayoutError
from workers.models.deepseek_v41.layout import Component, Stored, expected_tensors, is_draft
from workers.models.deepseek_v41.layout_check import Match, check_layout
from workers.models.deepseek_v41.model import DeepseekV41
from workers.models.deepseek_v41.token_map import load_token_map
from workers.models.deepseek_v41.weights import Runtime
from workers.models.safetensors_index import CheckpointIndex, read_index
from workers.models.safetensors_stream import LoadProgress, SafetensorsStream

# A large tensor is read and converted in runs of rows of about this many bytes.
RUN_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How weights lie in memory. `dtype` is the model's; float32 parts stay float32."""

    dtype: torch.dtype = torch.float32
    keep_quantized: bool = False
    draft: bool = True
    device: str = "cpu"


def load(
    folder: Path,
    options: LoadOptions | None = None,
    progress: Callable[[LoadProgress], None] | None = None,
    runtime: Runtime | None = None,
) -> DeepseekV41:
    """Load a checkpoint in the official layout; `runtime` brings its matrices into the form they are served in.

    Raises `ConfigError`, `LayoutError` (naming each missing, unexpected or misshapen tensor), `TokenMapError` or
    `CheckpointError`, all before reading weights; only a file that shrinks meanwhile can fail later.
    """
    options = options or LoadOptions()
    config = DeepseekV41Config.from_folder(folder)
    index = read_index(folder)
    matches = check_checkpoint(index, config, draft=options.draft)
    token_map = load_token_map(folder, config).to(options.device)
    weights = load_weights(matches, options, progress)
    return DeepseekV41(config, weights, token_map, draft=options.draft, runtime=runtime)


def check_checkpoint(index: CheckpointIndex, config: DeepseekV41Config, *, draft: bool) -> list[Match]:
    """The tensors to load. Raises `LayoutError` unless the checkpoint holds exactly what the configuration needs."""
    report = check_layout(index, expected_tensors(config))
    problems = report.problems()
    problems += [f"tensor {name} is listed in the index but in no shard" for name in index.absent]
    if problems:
        raise LayoutError(index.folder, problems)
    index.require_payloads()
    return [match for match in report.matches if draft or not is_draft(match.spec.name)]


def load_weights(
    matches: list[Match], options: LoadOptions, progress: Callable[[LoadProgress], None] | None = None
) -> dict[str, Weight]:
    """Read the tensors in file order into weights under the names that `WeightShelf` explains."""
    stacks = _expert_stacks(matches, options)
    weights = {name: stack.weight for name, stack in stacks.items()}
    order = sorted(matches, key=lambda match: (str(match.entry.file), match.entry.begin))
    total, done = sum(match.nbytes for match in order), 0
    with SafetensorsStream() as stream, SafetensorsStream() as scale_stream:
        for count, match in enumerate(order, 1):
            name = match.spec.name.removesuffix(".weight")
            if match.spec.component is Component.EXPERTS:
                stack_name, expert = _stack_of(name)
                stacks[stack_name].fill(expert, match, stream, scale_stream, options)
            else:
                weights[name] = _read(match, stream, scale_stream, options)
            done += match.nbytes
            if progress is not None:
                progress(LoadProgress(match.spec.name, count, len(order), done, total))
    return weights


def _kept(match: Match, options: LoadOptions) -> bool:
    return match.stored is not Stored.FLOAT and (options.keep_quantized or match.spec.component is Component.ENGRAM)


def _dtype(match: Match, options: LoadOptions) -> torch.dtype:
    return torch.promote_types(options.dtype, torch.float32) if match.spec.wide else options.dtype


def _read(match: Match, stream: SafetensorsStream, scale_stream: SafetensorsStream, options: LoadOptions) -> Weight:
    if _kept(match, options):
        assert match.scale is not None
        data = stream.read(match.entry).to(options.device)
        return Weight(WeightFormat(match.stored), data, scale_stream.read(match.scale).to(options.device))
    target = torch.empty(match.spec.shape, dtype=_dtype(match, options), device=options.device)
    for first, part in _dense_runs(match, stream, scale_stream):
        target[first : first + len(part)] = part
    return Weight.of(target)


def _dense_runs(
    match: Match, stream: SafetensorsStream, scale_stream: SafetensorsStream
) -> Iterator[tuple[int, torch.Tensor]]:
    """(first row, float rows) of a tensor, dequantised, a run at a time."""
    rows = match.spec.shape[0]
    # Whole scale blocks of 32 rows, counted at the four bytes an element that dequantising takes.
    row_bytes = 4 * max(1, match.entry.elements // max(1, rows))
    step = max(32, RUN_BYTES // row_bytes // 32 * 32)
    for first in range(0, rows, step):
        last = min(rows, first + step)
        data = stream.read_rows(match.entry, first, last)
        if match.scale is None:
            yield first, data
            continue
        by_block = match.stored is Stored.FP8_BLOCK
        scale_rows = (first // 32, -(-last // 32)) if by_block else (first, last)
        scales = scale_stream.read_rows(match.scale, *scale_rows)
        yield first, decode_weight(data, scales, WeightFormat(match.stored), torch.float32)


def _stack_of(name: str) -> tuple[str, int]:
    """`layers.3.ffn.experts.17.w1` -> (`layers.3.ffn.experts.w1`, 17)."""
    prefix, expert, matrix = name.rsplit(".", 2)
    return f"{prefix}.{matrix}", int(expert)


class _ExpertStack:
    """The stacked memory of one matrix of all experts of a layer, filled in any order."""

    def __init__(self, first: Match, experts: int, options: LoadOptions, kept: bool) -> None:
        self.kept = kept

        def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            return torch.empty((experts, *shape), dtype=dtype, device=options.device)

        if kept:
            assert first.scale is not None
            payload = torch.float8_e4m3fn if first.stored is Stored.FP8_BLOCK else torch.int8
            self.weight = Weight(
                WeightFormat(first.stored), empty(first.entry.shape, payload), empty(first.scale.shape, torch.uint8)
            )
        else:
            self.weight = Weight.of(empty(first.spec.shape, options.dtype))

    def fill(
        self,
        expert: int,
        match: Match,
        stream: SafetensorsStream,
        scale_stream: SafetensorsStream,
        options: LoadOptions,
    ) -> None:
        if self.kept:
            assert match.scale is not None
            assert self.weight.scales is not None
            self.weight.data[expert] = stream.read(match.entry).view(self.weight.data.dtype)
            self.weight.scales[expert] = scale_stream.read(match.scale)
        else:
            for first, part in _dense_runs(match, stream, scale_stream):
                self.weight.data[expert, first : first + len(part)] = part


def _expert_stacks(matches: list[Match], options: LoadOptions) -> dict[str, _ExpertStack]:
    members: dict[str, list[Match]] = {}
    for match in matches:
        if match.spec.component is Component.EXPERTS:
            members.setdefault(_stack_of(match.spec.name.removesuffix(".weight"))[0], []).append(match)
    stacks = {}
    for name, stacked in members.items():
        # Experts of one layer in different formats cannot share memory as they are: those are dequantised.
        uniform = len({match.stored for match in stacked}) == 1
        kept = uniform and all(_kept(match, options) for match in stacked)
        stacks[name] = _ExpertStack(stacked[0], len(stacked), options, kept)
    return stacks
