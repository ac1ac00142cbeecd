"""What a checkpoint folder holds, from headers alone: parameters, bytes, fit to its configuration, bytes per card.

Torch-free, and the same for every family: each family says which tensors it expects.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from workers.models.deepseek_v41.config import MODEL_TYPES, DeepseekV41Config
from workers.models.deepseek_v41.layout import Component, expected_tensors
from workers.models.deepseek_v41.layout_check import LayoutReport, Match, check_layout
from workers.models.safetensors_index import CheckpointError, CheckpointIndex, read_index

LLAMA_PARTS = {"self_attn": "attention", "mlp": "feed_forward", "embed_tokens": "embeddings", "lm_head": "embeddings"}
GGUF_PARTS = {"attn": "attention", "ffn": "feed_forward", "token": "embeddings", "output": "embeddings"}
GGUF_INDEX_NAME = "gguf-index.json"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor (with its scales): `stack` names what it is one of when it belongs to an expert."""

    part: str
    parameters: int
    nbytes: int
    stack: str | None = None


@dataclass(frozen=True, slots=True)
class CardLayout:
    """How weights are spread: `split` parts evenly over the cards, `host` parts kept off them, the rest on each.

    Experts are dealt out whole, layer by layer, with `redundant_experts` more replicas in each layer of the backbone.
    """

    cards: int = 1
    split: frozenset[str] = frozenset()
    host: frozenset[str] = frozenset()
    redundant_experts: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    parameters: int
    nbytes: int
    card_bytes: int
    """On the fullest card; 0 for parts on the host."""


@dataclass(slots=True)
class Inspection:
    """The result. `problems` name tensors, `notes` say what does not keep the checkpoint from loading."""

    folder: Path
    family: str
    layers: int
    tensors: list[Tensor]
    files: int
    missing: list[str]
    unexpected: list[str]
    misshapen: list[str]
    notes: list[str] = field(default_factory=list)

    @property
    def parameters(self) -> int:
        return sum(tensor.parameters for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def problems(self) -> list[str]:
        return [f"missing: {n}" for n in self.missing] + self.misshapen + [f"unexpected: {n}" for n in self.unexpected]

    def parts(self, layout: CardLayout) -> list[Part]:
        """Sums by part, the largest first. Raises `ValueError` for a part that this model does not have."""
        groups: dict[str, list[Tensor]] = {}
        for tensor in self.tensors:
            groups.setdefault(tensor.part, []).append(tensor)
        for name in layout.split | layout.host:
            if name not in groups:
                raise ValueError(f"this model has no part {name!r}, only {', '.join(sorted(groups))}")
        parts = [
            Part(
                name,
                sum(t.parameters for t in members),
                sum(t.nbytes for t in members),
                _card_bytes(name, members, layout),
            )
            for name, members in groups.items()
        ]
        return sorted(parts, key=lambda part: -part.nbytes)


def _card_bytes(name: str, members: list[Tensor], layout: CardLayout) -> int:
    if name in layout.host:
        return 0
    whole = sum(t.nbytes for t in members)
    if name not in layout.split:
        return whole
    stacks: dict[str, list[int]] = {}
    for tensor in members:
        if tensor.stack is not None:
            stacks.setdefault(tensor.stack, []).append(tensor.nbytes)
    total = -(-sum(t.nbytes for t in members if t.stack is None) // layout.cards)
    for stack, sizes in stacks.items():
        redundant = 0 if stack.startswith("mtp.") else layout.redundant_experts
        replicas = -(-(len(sizes) + redundant) // layout.cards)
        total += min(replicas, len(sizes) + redundant) * max(sizes)
    return total


def inspect(folder: Path) -> Inspection:
    """Read the headers of a checkpoint folder of either family, or the index of a GGUF model in the store.

    Raises `CheckpointError` when they say nothing.
    """
    if (folder / GGUF_INDEX_NAME).is_file():
        return _inspect_gguf(folder)
    raw = read_config(folder)
    index = read_index(folder)
    inspection = _inspect_v41(folder, raw, index) if is_v41(raw) else _inspect_llama(folder, raw, index)
    inspection.notes += [f"{s.file.name} lacks {s.missing_bytes:,} bytes of tensor data" for s in index.short_files()]
    inspection.notes += [f"{name} is listed in the index but in no shard" for name in index.absent]
    inspection.notes += [f"{name} is in another shard than the index says" for name in index.unlisted]
    return inspection


def read_config(folder: Path) -> Mapping[str, object]:
    """The parsed `config.json`. Raises `CheckpointError`."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder")
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: not an object")
    return raw


def is_v41(raw: Mapping[str, object]) -> bool:
    """Whether a `config.json` is of the DeepSeek-V4.1 family."""
    return raw.get("model_type") in MODEL_TYPES


def _inspect_v41(folder: Path, raw: Mapping[str, object], index: CheckpointIndex) -> Inspection:
    config = DeepseekV41Config.from_dict(raw)
    report: LayoutReport = check_layout(index, expected_tensors(config))
    tensors = [_v41_tensor(match) for match in report.matches]
    inspection = Inspection(
        folder,
        "deepseek_v41",
        config.num_hidden_layers,
        tensors,
        len(index.files),
        report.missing,
        report.unexpected,
        report.misshapen,
    )
    if report.ignored:
        inspection.notes.append(f"{report.ignored} tensors of the vision part are not used")
    if config.unknown_keys:
        inspection.notes.append(f"config.json keys that nothing reads: {', '.join(config.unknown_keys)}")
    return inspection


def _v41_tensor(match: Match) -> Tensor:
    name, spec = match.spec.name, match.spec
    stack = None
    if spec.component is Component.EXPERTS:
        # layers.3.ffn.experts.17.w1.weight: one of the w1 of layer 3.
        before, after = name.split(".experts.")
        stack = f"{before}.{after.split('.')[1]}"
    return Tensor(spec.component.value, math.prod(spec.shape), match.nbytes, stack)


def _inspect_llama(folder: Path, raw: Mapping[str, object], index: CheckpointIndex) -> Inspection:
    # Here, because these reach for the GGUF reader, which costs a second to import.
    from workers.models.llama.config import ConfigError as LlamaConfigError
    from workers.models.llama.config import LlamaConfig
    from workers.models.llama.names import expected_shapes

    try:
        config = LlamaConfig.from_hf(raw)
    except LlamaConfigError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    expected = expected_shapes(config)
    tensors, missing, misshapen = [], [], []
    for name, shape in expected.items():
        entry = index.tensors.get(name)
        if entry is None:
            missing.append(name)
        elif entry.shape != shape:
            misshapen.append(f"tensor {name} has shape {list(entry.shape)}, not {list(shape)}")
        else:
            tensors.append(Tensor(_llama_part(name), entry.elements, entry.nbytes))
    # What the loader forgives: older exports store the rotary table, tied ones a second head.
    extra = (n for n in index.tensors if n not in expected and not n.endswith("rotary_emb.inv_freq"))
    unexpected = [n for n in extra if n != "lm_head.weight"]
    files = len(index.files)
    return Inspection(folder, "llama", config.layers, tensors, files, missing, unexpected, misshapen)


def _llama_part(name: str) -> str:
    return next((part for key, part in LLAMA_PARTS.items() if key in name.split(".")), "other")


def _inspect_gguf(folder: Path) -> Inspection:
    """A model that `models add` put into the store; it was checked then."""
    from workers.models.gguf_file import GGUFError
    from workers.models.gguf_index import read_index as read_gguf_index

    try:
        index = read_gguf_index(folder)
    except GGUFError as error:
        raise CheckpointError(str(error)) from error
    tensors = [
        Tensor(_gguf_part(name), math.prod(tensor.shape), tensor.nbytes) for name, tensor in index.tensors.items()
    ]
    return Inspection(folder, "llama", index.config.layers, tensors, 1, [], [], [])


def _gguf_part(name: str) -> str:
    word = name.split(".")[2] if name.startswith("blk.") else name
    if "norm" in word:
        return "other"
    return next((part for key, part in GGUF_PARTS.items() if word.startswith(key)), "other")


def default_split(family: str) -> Iterable[str]:
    """The parts that a deployment over several cards spreads unless told otherwise."""
    return ("experts", "engram") if family == "deepseek_v41" else ("attention", "feed_forward")
