"""The tensors that a checkpoint of a configuration must hold (V4.1 specification, section 8). No torch.

`X.weight` payloads in fp8 or fp4 have a sibling `X.scale`; a float `X.weight` has none. Which formats a tensor may
come in is part of its entry, so that a reader needs no knowledge of names.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from workers.models.deepseek_v41.config import DeepseekV41Config

SCALE_BLOCK = 32
# Parts of the released checkpoint that the text model does not use.
IGNORED_PREFIXES = ("vision.", "aligner.", "image_")
FLOAT_DTYPES = frozenset({"F32", "BF16", "F16", "F64"})
SCALE_DTYPES = frozenset({"U8", "F8_E8M0"})


class Quantized(enum.StrEnum):
    """The quantised form that a weight may have instead of floats."""

    NEVER = "never"
    BLOCKS = "blocks"
    """e4m3, one scale per 32x32."""
    ROWS = "rows"
    """e4m3, one scale per row and 32 columns."""
    EXPERT = "expert"
    """e2m1 pairs, one scale per row and 32 columns; or e4m3 in blocks."""


class Stored(enum.StrEnum):
    """The form a tensor was found in; values are those of `kernels.quantization.WeightFormat`, which needs torch."""

    FLOAT = "float"
    FP8_BLOCK = "fp8_block"
    FP8_ROW = "fp8_row"
    MXFP4 = "mxfp4"


class Component(enum.StrEnum):
    """What a tensor belongs to: the grain at which weights are spread over cards."""

    EMBEDDINGS = "embeddings"
    ATTENTION = "attention"
    EXPERTS = "experts"
    SHARED = "shared"
    ENGRAM = "engram"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """`name` without `.weight`'s scale; `shape` is that of the values, whatever they are packed into."""

    name: str
    shape: tuple[int, ...]
    component: Component
    quantized: Quantized = Quantized.NEVER
    wide: bool = False
    """Kept in float32 (or wider) once loaded: what the model computes in float32."""

    @property
    def scale_name(self) -> str:
        return self.name.removesuffix(".weight") + ".scale"


def expected_tensors(config: DeepseekV41Config, *, draft: bool = True) -> Iterator[TensorSpec]:
    """Every tensor of the text model, and of the draft stages unless `draft` is false."""
    c = config
    vocabulary = (c.vocab_size, c.hidden_size)
    yield TensorSpec("embed.weight", vocabulary, Component.EMBEDDINGS)
    yield TensorSpec("head.weight", vocabulary, Component.EMBEDDINGS)
    yield TensorSpec("norm.weight", (c.hidden_size,), Component.OTHER, wide=True)
    for layer in range(c.num_hidden_layers):
        name = f"layers.{layer}"
        yield from _sublayers(c, name, c.n_routed_experts)
        if layer in c.engram_layer_ids:
            yield from _engram(c, name, c.engram_num_embeddings[c.engram_layer_ids.index(layer)])
        if layer in c.kv_source_layer_ids:
            yield from _compressor(c, name, c.ratio(layer))
        if layer in c.index_source_layer_ids:
            yield from _indexer(c, name)
    if draft and c.num_nextn_predict_layers:
        yield from _draft(c)


def is_draft(name: str) -> bool:
    return name.startswith("mtp.")


def _sublayers(c: DeepseekV41Config, name: str, experts: int) -> Iterator[TensorSpec]:
    d, h, q = c.hidden_size, c.num_attention_heads * c.head_dim, c.q_lora_rank
    groups = c.o_groups * c.o_lora_rank
    attention, other = Component.ATTENTION, Component.OTHER
    yield TensorSpec(f"{name}.attn_norm.weight", (d,), other, wide=True)
    yield TensorSpec(f"{name}.ffn_norm.weight", (d,), other, wide=True)
    for matrix, shape in (
        ("wq_a", (q, d)),
        ("wq_b", (h, q)),
        ("wkv", (c.head_dim, d)),
        ("wo_a", (groups, h // c.o_groups)),
        ("wo_b", (d, groups)),
    ):
        yield TensorSpec(f"{name}.attn.{matrix}.weight", shape, attention, Quantized.BLOCKS)
    yield TensorSpec(f"{name}.attn.q_norm.weight", (q,), attention, wide=True)
    yield TensorSpec(f"{name}.attn.kv_norm.weight", (c.head_dim,), attention, wide=True)
    yield TensorSpec(f"{name}.attn.attn_sink", (c.num_attention_heads,), attention, wide=True)
    yield TensorSpec(f"{name}.ffn.gate.weight", (experts, d), other, wide=True)
    yield TensorSpec(f"{name}.ffn.gate.bias", (experts,), other, wide=True)
    yield TensorSpec(f"{name}.ffn.gate.bias_vl", (experts,), other, wide=True)
    inner = c.moe_intermediate_size
    matrices = (("w1", (inner, d)), ("w3", (inner, d)), ("w2", (d, inner)))
    for expert in range(experts):
        for matrix, shape in matrices:
            yield TensorSpec(f"{name}.ffn.experts.{expert}.{matrix}.weight", shape, Component.EXPERTS, Quantized.EXPERT)
    for matrix, shape in matrices:
        yield TensorSpec(f"{name}.ffn.shared_experts.{matrix}.weight", shape, Component.SHARED, Quantized.BLOCKS)
    n = c.hc_mult
    mixes = 2 * n + n * n
    for sublayer in ("hc_attn", "hc_ffn"):
        yield TensorSpec(f"{name}.{sublayer}_fn", (mixes, n * d), other, wide=True)
        yield TensorSpec(f"{name}.{sublayer}_base", (mixes,), other, wide=True)
        yield TensorSpec(f"{name}.{sublayer}_scale", (3,), other, wide=True)


def _engram(c: DeepseekV41Config, name: str, rows: int) -> Iterator[TensorSpec]:
    columns = (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim
    streams = (c.hc_mult, c.hidden_size)
    yield TensorSpec(f"{name}.engram.embed.weight", (rows, c.engram_head_dim), Component.ENGRAM, Quantized.ROWS)
    yield TensorSpec(
        f"{name}.engram.wkv.weight", ((c.hc_mult + 1) * c.hidden_size, columns), Component.SHARED, Quantized.BLOCKS
    )
    yield TensorSpec(f"{name}.engram.q_weight", streams, Component.OTHER, wide=True)
    yield TensorSpec(f"{name}.engram.k_weight", streams, Component.OTHER, wide=True)


def _compressor(c: DeepseekV41Config, name: str, ratio: int) -> Iterator[TensorSpec]:
    attention, latent = Component.ATTENTION, (c.head_dim, c.hidden_size)
    yield TensorSpec(f"{name}.attn.compressor.wkv.weight", latent, attention, wide=True)
    if ratio == 2:
        yield TensorSpec(f"{name}.attn.compressor.wgate.weight", latent, attention, wide=True)
    yield TensorSpec(f"{name}.attn.compressor.norm.weight", (c.head_dim,), attention, wide=True)
    yield TensorSpec(f"{name}.attn.indexer.wk.weight", (c.index_head_dim, c.head_dim), attention)
    yield TensorSpec(f"{name}.attn.indexer.k_norm.weight", (c.index_head_dim,), attention, wide=True)


def _indexer(c: DeepseekV41Config, name: str) -> Iterator[TensorSpec]:
    queries = (c.index_n_heads * c.index_head_dim, c.q_lora_rank)
    yield TensorSpec(f"{name}.attn.indexer.wq_b.weight", queries, Component.ATTENTION, Quantized.BLOCKS)
    heads = (c.index_n_heads, c.hidden_size)
    yield TensorSpec(f"{name}.attn.indexer.weights_proj.weight", heads, Component.ATTENTION, wide=True)


def _draft(c: DeepseekV41Config) -> Iterator[TensorSpec]:
    for stage in range(c.num_nextn_predict_layers):
        yield from _sublayers(c, f"mtp.{stage}", c.dspark_n_routed_experts)
    d, targets = c.hidden_size, len(c.dspark_target_layer_ids)
    yield TensorSpec("mtp.0.main_proj.weight", (d, targets * d), Component.OTHER, Quantized.BLOCKS)
    yield TensorSpec("mtp.0.main_norm.weight", (d,), Component.OTHER, wide=True)
    last = f"mtp.{c.num_nextn_predict_layers - 1}"
    markov = (c.vocab_size, c.dspark_markov_rank)
    yield TensorSpec(f"{last}.norm.weight", (d,), Component.OTHER, wide=True)
    yield TensorSpec(f"{last}.markov_head.embed.weight", markov, Component.EMBEDDINGS)
    yield TensorSpec(f"{last}.markov_head.head.weight", markov, Component.EMBEDDINGS)
    confidence = (1, d + c.dspark_markov_rank)
    yield TensorSpec(f"{last}.confidence_head.proj.weight", confidence, Component.OTHER, wide=True)
