"""Hold a checkpoint's headers against what its configuration needs: strict, and without reading any payload."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from workers.models.deepseek_v41.layout import (
    FLOAT_DTYPES,
    IGNORED_PREFIXES,
    SCALE_BLOCK,
    SCALE_DTYPES,
    Quantized,
    Stored,
    TensorSpec,
)
from workers.models.safetensors_index import CheckpointIndex, TensorEntry


@dataclass(frozen=True, slots=True)
class Match:
    """A tensor that is there and fits: its specification, its entry, and its scales where it is quantised."""

    spec: TensorSpec
    stored: Stored
    entry: TensorEntry
    scale: TensorEntry | None = None

    @property
    def nbytes(self) -> int:
        return self.entry.nbytes + (self.scale.nbytes if self.scale else 0)


@dataclass(slots=True)
class LayoutReport:
    """What fits and what does not; each problem names the tensor. `ignored` counts tensors of unused parts."""

    matches: list[Match] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    ignored: int = 0

    def problems(self) -> list[str]:
        return [
            *(f"tensor {name} is missing" for name in self.missing),
            *self.misshapen,
            *(f"tensor {name} is unexpected" for name in self.unexpected),
        ]


def check_layout(
    index: CheckpointIndex, specs: Iterable[TensorSpec], ignored_prefixes: tuple[str, ...] = IGNORED_PREFIXES
) -> LayoutReport:
    """Compare all of `specs` with all of `index`."""
    report = LayoutReport()
    seen: set[str] = set()
    for spec in specs:
        seen.add(spec.name)
        entry = index.tensors.get(spec.name)
        if entry is None:
            report.missing.append(spec.name)
            # Its scale, were it there, would only be named twice.
            seen.add(spec.scale_name)
            continue
        match = _match(spec, entry, index, seen)
        if isinstance(match, Match):
            report.matches.append(match)
        else:
            report.misshapen.append(match)
    for name in index.tensors:
        if name not in seen:
            if name.startswith(ignored_prefixes):
                report.ignored += 1
            else:
                report.unexpected.append(name)
    return report


def _blocks(n: int) -> int:
    return -(-n // SCALE_BLOCK)


def _match(spec: TensorSpec, entry: TensorEntry, index: CheckpointIndex, seen: set[str]) -> Match | str:
    if entry.dtype in FLOAT_DTYPES:
        if entry.shape != spec.shape:
            return f"tensor {spec.name} has shape {list(entry.shape)}, not {list(spec.shape)}"
        return Match(spec, Stored.FLOAT, entry)
    seen.add(spec.scale_name)
    rows, columns = spec.shape if len(spec.shape) == 2 else (0, 0)
    stored, scales = spec.shape, (_blocks(rows), _blocks(columns))
    if entry.dtype == "F8_E4M3" and spec.quantized in (Quantized.BLOCKS, Quantized.EXPERT):
        stored_as = Stored.FP8_BLOCK
    elif entry.dtype == "F8_E4M3" and spec.quantized is Quantized.ROWS:
        stored_as, scales = Stored.FP8_ROW, (rows, _blocks(columns))
    elif entry.dtype in ("I8", "U8") and spec.quantized is Quantized.EXPERT:
        stored_as, scales = Stored.MXFP4, (rows, _blocks(columns))
        stored = (rows, columns // 2)
    else:
        return f"tensor {spec.name} has dtype {entry.dtype}, which it cannot come in"
    if entry.shape != stored:
        return f"tensor {spec.name} ({entry.dtype}) has shape {list(entry.shape)}, not {list(stored)}"
    scale = index.tensors.get(spec.scale_name)
    if scale is None:
        return f"tensor {spec.scale_name} is missing: {spec.name} is {entry.dtype}"
    if scale.shape != scales:
        return f"tensor {scale.name} has shape {list(scale.shape)}, not {list(scales)}"
    if scale.dtype not in SCALE_DTYPES:
        return f"tensor {scale.name} has dtype {scale.dtype}; ue8m0 bytes (U8 or F8_E8M0) are needed"
    return Match(spec, stored_as, entry, scale)
