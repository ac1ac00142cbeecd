"""Which tensors a Llama checkpoint must hold, under Hugging Face's names, and their shapes."""

from __future__ import annotations

from workers.models.llama.config import LlamaConfig
from workers.models.safetensors_index import CheckpointError, CheckpointIndex

_FLOATS = frozenset({"F32", "F16", "BF16"})


def expected_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Name to shape of every weight, without a tied output head."""
    c = config
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (c.vocab_size, c.hidden_size),
        "model.norm.weight": (c.hidden_size,),
    }
    if not c.tied_embeddings:
        shapes["lm_head.weight"] = (c.vocab_size, c.hidden_size)
    for layer in range(c.layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (c.hidden_size,),
            f"{prefix}post_attention_layernorm.weight": (c.hidden_size,),
            f"{prefix}self_attn.q_proj.weight": (c.heads * c.head_dim, c.hidden_size),
            f"{prefix}self_attn.k_proj.weight": (c.kv_heads * c.head_dim, c.hidden_size),
            f"{prefix}self_attn.v_proj.weight": (c.kv_heads * c.head_dim, c.hidden_size),
            f"{prefix}self_attn.o_proj.weight": (c.hidden_size, c.heads * c.head_dim),
            f"{prefix}mlp.gate_proj.weight": (c.intermediate_size, c.hidden_size),
            f"{prefix}mlp.up_proj.weight": (c.intermediate_size, c.hidden_size),
            f"{prefix}mlp.down_proj.weight": (c.hidden_size, c.intermediate_size),
        }
    return shapes


def check_names(config: LlamaConfig, index: CheckpointIndex) -> None:
    """Raise CheckpointError for the first tensor that is missing, unexpected, misshapen or not a float."""
    expected = expected_shapes(config)
    for name, shape in expected.items():
        entry = index[name]
        if entry.shape != shape:
            raise CheckpointError(f"tensor {name} has shape {entry.shape}, expected {shape}")
        if entry.dtype not in _FLOATS:
            raise CheckpointError(
                f"tensor {name} has dtype {entry.dtype}, expected one of {', '.join(sorted(_FLOATS))}"
            )
    for entry in index:
        known = entry.name in expected
        if not known and not entry.name.endswith("rotary_emb.inv_freq") and entry.name != "lm_head.weight":
            raise CheckpointError(f"tensor {entry.name} is unexpected in a Llama checkpoint")
    if index.absent:
        raise CheckpointError(f"tensor {index.absent[0]} is listed in the index but in no shard")
