"""The model's configuration, read once and checked (V4.1 specification, section 1)."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.models.deepseek_v41 import config_checks
from workers.models.deepseek_v41.errors import ConfigError

CONFIG_NAME = "config.json"
MODEL_TYPES = ("deepseek_v41", "deepseek_v41_text")
IMAGE_ID_COUNT = 5
"""Ids image_token_id .. image_token_id + 4 are the image sentinels: they take their own routing bias."""


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Long-context scaling of the rotary frequencies of layers that read latents."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class DeepseekV41Config:
    """Every number that the forward pass needs. Names are those of `config.json`.

    `compress_ratios` has an entry for each layer (what it reads: 0 the window alone, 1 or 2 latents of that ratio too);
    entries for the draft stages, which must be 0, are cut off on reading.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    candidate_source_layer_id: int
    candidate_topk_blocks: int
    candidate_block_size: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: YarnScaling | None
    max_position_embeddings: int
    rms_norm_eps: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    n_routed_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    routed_scaling_factor: float
    swiglu_limit: float
    engram_layer_ids: tuple[int, ...]
    engram_num_embeddings: tuple[int, ...]
    engram_vocab_size: int
    engram_max_ngram_size: int
    engram_n_heads: int
    engram_head_dim: int
    engram_pad_token_id: int
    engram_compressed_vocab_size: int
    image_token_id: int
    num_nextn_predict_layers: int
    dspark_block_size: int
    dspark_noise_token_id: int
    dspark_markov_rank: int
    dspark_target_layer_ids: tuple[int, ...]
    dspark_n_routed_experts: int
    dspark_num_experts_per_tok: int
    gate_temp: float = 1.0
    bos_token_id: int = 0
    eos_token_id: int = 1
    quantized: bool = False
    """Whether `quantization_config` says fp8: the checkpoint then was trained with the packed cache formats."""
    unknown_keys: tuple[str, ...] = field(default=(), compare=False)
    """Keys of the json that nothing here reads; shown by `models inspect`."""

    def __post_init__(self) -> None:
        config_checks.check(self)

    @property
    def cut(self) -> int:
        """The last KV-source layer: from the next one on, layers own window rows only."""
        return max(self.kv_source_layer_ids)

    @property
    def can_trim(self) -> bool:
        """Whether prefill may drop rows after layer `cut` (section 10.1): nothing later may need all of them."""
        return self.candidate_source_layer_id <= self.cut and all(layer < self.cut for layer in self.engram_layer_ids)

    @property
    def trains_packed_caches(self) -> bool:
        return self.quantized

    def ratio(self, layer: int) -> int:
        return self.compress_ratios[layer]

    def kv_owner(self, layer: int) -> int | None:
        """The layer whose latents `layer` attends to; None where it reads its window alone."""
        return max(s for s in self.kv_source_layer_ids if s <= layer) if self.ratio(layer) else None

    def index_owner(self, layer: int) -> int | None:
        """The layer whose selection `layer` attends to; None where it reads its window alone."""
        return max(s for s in self.index_source_layer_ids if s <= layer) if self.ratio(layer) else None

    @classmethod
    def from_folder(cls, folder: Path) -> "DeepseekV41Config":
        """Read `config.json` of a checkpoint folder. Raises `ConfigError` naming the key."""
        path = folder / CONFIG_NAME
        try:
            raw = json.loads(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path}: not JSON: {error}") from error
        return cls.from_dict(raw)

    @classmethod
    def from_dict(cls, raw: object) -> "DeepseekV41Config":
        """Read the nested form (`text_config` inside) or the flat one. Raises `ConfigError` naming the key."""
        return cls(**config_checks.read_fields(cls, raw))

    def to_dict(self) -> dict[str, Any]:
        """The nested json form that `from_dict` reads back."""
        return config_checks.write_fields(self)
