"""The numbers of a Llama-family model, from a `config.json` or GGUF metadata, with what we refuse by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from workers.models.gguf_file import GGUFFile

_TYPES = frozenset({"llama"})
_ROPE_TYPES = frozenset({"default", "linear", "llama3"})


class ConfigError(ValueError):
    """The configuration asks for something this implementation does not do, or contradicts itself."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched. `linear` uses `factor` alone; `llama3` all four."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_context: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tied_embeddings: bool
    block_tokens: int = 16

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ConfigError(f"{self.heads} attention heads are no multiple of {self.kv_heads} key/value heads")
        if self.head_dim % 2:
            raise ConfigError(f"head_dim {self.head_dim} is odd: rotary positions need pairs of channels")
        for name in ("vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "max_context"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}")

    def canonical(self) -> dict[str, Any]:
        """Everything that changes results, for the weights' fingerprint."""
        return asdict(self)

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> LlamaConfig:
        """From a parsed `config.json`. Raises ConfigError that names the field."""
        kind = raw.get("model_type")
        if kind not in _TYPES:
            raise ConfigError(f"model_type {kind!r} is not supported (only {', '.join(sorted(_TYPES))})")
        for field in ("attention_bias", "mlp_bias"):
            if raw.get(field):
                raise ConfigError(f"{field} is not supported")
        if raw.get("quantization_config"):
            method = raw["quantization_config"].get("quant_method", "unknown")
            raise ConfigError(f"quantized checkpoints are not supported (quantization_config: {method})")
        if raw.get("hidden_act", "silu") != "silu":
            raise ConfigError(f"hidden_act {raw['hidden_act']!r} is not supported (only silu)")
        if raw.get("pretraining_tp", 1) != 1:
            raise ConfigError("pretraining_tp other than 1 is not supported")
        theta, scaling = _rope(raw)
        try:
            heads = int(raw["num_attention_heads"])
            hidden = int(raw["hidden_size"])
            head_dim = raw.get("head_dim")
            if head_dim is None and hidden % heads:
                raise ConfigError(f"hidden_size {hidden} is no multiple of {heads} heads, and head_dim is not given")
            return cls(
                vocab_size=int(raw["vocab_size"]),
                hidden_size=hidden,
                intermediate_size=int(raw["intermediate_size"]),
                layers=int(raw["num_hidden_layers"]),
                heads=heads,
                kv_heads=int(raw.get("num_key_value_heads") or heads),
                head_dim=int(head_dim or hidden // heads),
                max_context=int(raw["max_position_embeddings"]),
                rms_eps=float(raw["rms_norm_eps"]),
                rope_theta=theta,
                rope_scaling=scaling,
                tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
            )
        except KeyError as error:
            raise ConfigError(f"config.json lacks {error.args[0]}") from None

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> LlamaConfig:
        """From GGUF metadata. Raises ConfigError or GGUFError."""
        architecture = file.require("general.architecture")
        if architecture not in _TYPES:
            raise ConfigError(f"architecture {architecture!r} is not supported (only {', '.join(sorted(_TYPES))})")
        if file.get("llama.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in file:
            raise ConfigError("rotary scaling in GGUF files is not supported")
        if file.get("llama.expert_count", 0):
            raise ConfigError("mixtures of experts in GGUF files of architecture llama are not supported")
        heads = int(file.require("llama.attention.head_count"))
        hidden = int(file.require("llama.embedding_length"))
        head_dim = int(file.get("llama.attention.key_length", hidden // heads))
        if int(file.get("llama.rope.dimension_count", head_dim)) != head_dim:
            raise ConfigError("rotary positions over a part of the head are not supported")
        return cls(
            vocab_size=file.shape("token_embd.weight")[0],
            hidden_size=hidden,
            intermediate_size=int(file.require("llama.feed_forward_length")),
            layers=int(file.require("llama.block_count")),
            heads=heads,
            kv_heads=int(file.get("llama.attention.head_count_kv", heads)),
            head_dim=head_dim,
            max_context=int(file.require("llama.context_length")),
            rms_eps=float(file.require("llama.attention.layer_norm_rms_epsilon")),
            rope_theta=float(file.get("llama.rope.freq_base", 10000.0)),
            rope_scaling=None,
            tied_embeddings="output.weight" not in file,
        )


def _rope(raw: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """(theta, scaling) from `rope_parameters` (newer files) or `rope_theta` and `rope_scaling` (older ones)."""
    parameters: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta", raw.get("rope_theta", 10000.0)))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in _ROPE_TYPES:
        raise ConfigError(f"rope type {kind!r} is not supported (only {', '.join(sorted(_ROPE_TYPES))})")
    if float(parameters.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))) != 1.0:
        raise ConfigError("partial_rotary_factor other than 1 is not supported")
    if kind == "default":
        return theta, None
    try:
        if kind == "linear":
            return theta, RopeScaling(kind, float(parameters["factor"]))
        return theta, RopeScaling(
            kind,
            float(parameters["factor"]),
            float(parameters["low_freq_factor"]),
            float(parameters["high_freq_factor"]),
            int(parameters["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise ConfigError(f"rope type {kind!r} lacks {error.args[0]}") from None
