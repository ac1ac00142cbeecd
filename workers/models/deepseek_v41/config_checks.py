"""Reading the fields of `config.json`, and the conditions they must meet (V4.1 specification, sections 1 and 13)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workers.models.deepseek_v41.errors import ConfigError
from workers.models.deepseek_v41.primes import engram_primes

if TYPE_CHECKING:
    from workers.models.deepseek_v41.config import DeepseekV41Config

# What this family fixes. A checkpoint may leave the key out; another value is a model we would compute wrongly.
FIXED: Mapping[str, object] = {
    "num_key_value_heads": 1,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "num_hash_layers": 0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "hc_pre_from_prev_sublayer": True,
    "q_head_norm": False,
    "hidden_act": "silu",
}
# The pad id has two names in the wild (section 12, question 12).
ALIASES: Mapping[str, str] = {"engram_pad_id": "engram_pad_token_id"}
# Keys that say nothing about the text model's numerics.
IGNORED = frozenset(
    {
        "architectures", "attention_dropout", "auto_map", "dtype", "initializer_range", "model_type",
        "pad_token_id", "torch_dtype", "transformers_version", "use_cache", "vision_config",
    }
)  # fmt: skip


def read_fields(cls: type[DeepseekV41Config], raw: object) -> dict[str, Any]:
    """Constructor arguments from the parsed json, typed. Raises `ConfigError` for a missing or ill-typed key."""
    if not isinstance(raw, dict):
        raise ConfigError("config.json: not an object")
    text = raw.get("text_config", raw)
    if not isinstance(text, dict):
        raise ConfigError("config.json: text_config is not an object")
    known = {f.name: f for f in dataclasses.fields(cls) if f.name not in ("quantized", "unknown_keys")}
    values: dict[str, Any] = {}
    unknown = []
    for key, value in text.items():
        name = ALIASES.get(key, key)
        if name in known:
            values[name] = _typed(name, str(known[name].type), value)
        elif key in FIXED:
            if value != FIXED[key]:
                raise ConfigError(f"{key} = {value!r}: this model family has {FIXED[key]!r} only")
        elif key not in IGNORED and key not in ("text_config", "quantization_config"):
            unknown.append(key)
    missing = [n for n, f in known.items() if n not in values and f.default is dataclasses.MISSING]
    if missing:
        raise ConfigError(f"config.json lacks {', '.join(missing)}")
    quantization = raw.get("quantization_config") or text.get("quantization_config")
    values["quantized"] = _check_quantization(quantization)
    values["compress_ratios"] = _cut_draft_ratios(values)
    values["unknown_keys"] = tuple(unknown)
    return values


def _typed(name: str, kind: str, value: object) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if "YarnScaling" in kind:
        return _yarn(value)
    if "tuple" in kind:
        if isinstance(value, list | tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in value):
            return tuple(value)
        raise ConfigError(f"{name} = {value!r}: a list of whole numbers is needed")
    if "int" in kind:
        if whole:
            return value
        raise ConfigError(f"{name} = {value!r}: a whole number is needed")
    if number:
        return float(value)  # type: ignore[arg-type]
    raise ConfigError(f"{name} = {value!r}: a number is needed")


def _yarn(value: object) -> Any:
    from workers.models.deepseek_v41.config import YarnScaling

    if value is None:
        return None
    if not isinstance(value, dict):
        raise ConfigError(f"rope_scaling = {value!r}: an object or null is needed")
    kind = value.get("type", value.get("rope_type"))
    if kind != "yarn":
        raise ConfigError(f"rope_scaling.type = {kind!r}: only yarn is known")
    for amplitude in ("mscale", "mscale_all_dim", "attention_factor"):
        # mscale = mscale_all_dim = 1 cancel out; anything else would scale the logits, which V4.1 does not.
        if value.get(amplitude) not in (None, 1, 1.0):
            raise ConfigError(f"rope_scaling.{amplitude} = {value[amplitude]!r}: V4.1 has no amplitude factor")
    try:
        return YarnScaling(
            factor=float(value["factor"]),
            beta_fast=float(value.get("beta_fast", 32)),
            beta_slow=float(value.get("beta_slow", 1)),
            original_max_position_embeddings=int(value["original_max_position_embeddings"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"rope_scaling: {error!s} is missing or not a number") from error


def _check_quantization(value: object) -> bool:
    if not value:
        return False
    wanted = {"quant_method": ("fp8",), "weight_block_size": ([32, 32],), "scale_fmt": ("ue8m0",)}
    wanted |= {"expert_dtype": ("fp4",), "activation_scheme": ("dynamic",)}
    if not isinstance(value, dict):
        raise ConfigError("quantization_config is not an object")
    for key, allowed in wanted.items():
        if key in value and value[key] not in allowed:
            raise ConfigError(f"quantization_config.{key} = {value[key]!r}: only {allowed[0]!r} is known")
    return True


def _cut_draft_ratios(values: Mapping[str, Any]) -> tuple[int, ...]:
    ratios: tuple[int, ...] = values["compress_ratios"]
    layers, stages = values["num_hidden_layers"], values["num_nextn_predict_layers"]
    if len(ratios) not in (layers, layers + stages):
        raise ConfigError(f"compress_ratios has {len(ratios)} entries for {layers} layers and {stages} draft stages")
    if any(ratios[layers:]):
        raise ConfigError("compress_ratios: draft stages read their window alone, so their entries must be 0")
    return ratios[:layers]


def write_fields(config: DeepseekV41Config) -> dict[str, Any]:
    text = dataclasses.asdict(config)
    quantized = text.pop("quantized")
    text.pop("unknown_keys")
    text = {key: list(value) if isinstance(value, tuple) else value for key, value in text.items()}
    text["compress_ratios"] += [0] * config.num_nextn_predict_layers
    if config.rope_scaling is not None:
        text["rope_scaling"] = {"type": "yarn", **text["rope_scaling"]}
    text |= {key: FIXED[key] for key in ("num_key_value_heads", "n_shared_experts", "scoring_func", "topk_method")}
    text |= {"norm_topk_prob": True, "num_hash_layers": 0, "tie_word_embeddings": False}
    raw: dict[str, Any] = {"architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41"}
    raw["text_config"] = {"model_type": "deepseek_v41_text", **text}
    if quantized:
        raw["quantization_config"] = {
            "quant_method": "fp8",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
            "activation_scheme": "dynamic",
        }
    return raw


def check(c: DeepseekV41Config) -> None:
    """Raise `ConfigError` for the first condition that does not hold."""
    for field in dataclasses.fields(c):
        value = getattr(c, field.name)
        if field.type in ("int", int) and value < (0 if field.name.endswith("_id") or "nextn" in field.name else 1):
            raise ConfigError(f"{field.name} = {value}: too small")
        if field.type in ("float", float) and not 0 < value < float("inf"):
            raise ConfigError(f"{field.name} = {value}: a positive number is needed")
    _check_attention(c)
    _check_layers(c)
    _check_engram(c)
    _check_ids_and_draft(c)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


def _check_attention(c: DeepseekV41Config) -> None:
    rope = c.qk_rope_head_dim
    _require(rope % 2 == 0, f"qk_rope_head_dim = {rope}: channels are rotated in pairs")
    _require(rope <= c.head_dim, f"qk_rope_head_dim = {rope} is larger than head_dim = {c.head_dim}")
    _require(rope <= c.index_head_dim, f"qk_rope_head_dim = {rope} is larger than index_head_dim = {c.index_head_dim}")
    _require(
        c.num_attention_heads % c.o_groups == 0,
        f"o_groups = {c.o_groups} does not divide num_attention_heads = {c.num_attention_heads}",
    )
    _require(c.sliding_window % 2 == 0, f"sliding_window = {c.sliding_window}: must be even")
    _require(c.num_experts_per_tok <= c.n_routed_experts, "num_experts_per_tok is more than n_routed_experts")


def _check_layers(c: DeepseekV41Config) -> None:
    layers = c.num_hidden_layers
    _require(len(c.compress_ratios) == layers, f"compress_ratios has {len(c.compress_ratios)} entries, not {layers}")
    for layer, ratio in enumerate(c.compress_ratios):
        _require(ratio in (0, 1, 2), f"compress_ratios[{layer}] = {ratio}: only 0, 1 and 2 are known")
    for name in ("kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids", "dspark_target_layer_ids"):
        ids = getattr(c, name)
        _require(all(0 <= i < layers for i in ids), f"{name} = {list(ids)}: there are {layers} layers")
        _require(list(ids) == sorted(set(ids)), f"{name} = {list(ids)}: must ascend")
    _require(bool(c.kv_source_layer_ids), "kv_source_layer_ids is empty")
    for source in c.kv_source_layer_ids:
        _require(c.ratio(source) > 0, f"layer {source} is a KV source, but compress_ratios[{source}] is 0")
        # New latents make the previous selection meaningless.
        _require(source in c.index_source_layer_ids, f"layer {source} is a KV source but not an index source")
    for source in c.index_source_layer_ids:
        _require(c.ratio(source) > 0, f"layer {source} is an index source, but compress_ratios[{source}] is 0")
    first = c.kv_source_layer_ids[0]
    for layer, ratio in enumerate(c.compress_ratios):
        _require(not ratio or layer >= first, f"layer {layer} reads latents, but the first KV source is layer {first}")
        owner = c.kv_owner(layer)
        _require(
            owner is None or c.ratio(owner) == ratio,
            f"compress_ratios[{layer}] = {ratio}, but its KV source, layer {owner}, writes another ratio",
        )
    candidate = c.candidate_source_layer_id
    _require(candidate in c.index_source_layer_ids, f"candidate_source_layer_id = {candidate} is not an index source")
    later = [s for s in c.index_source_layer_ids if s > candidate]
    _require(
        all(c.kv_owner(s) == c.kv_owner(candidate) for s in later),
        f"an index source after layer {candidate} reads other latents than the candidates were chosen from",
    )
    _require(
        c.index_topk <= c.candidate_topk_blocks * c.candidate_block_size,
        "index_topk is more than candidate_topk_blocks * candidate_block_size",
    )


def _check_engram(c: DeepseekV41Config) -> None:
    _require(
        len(c.engram_num_embeddings) == len(c.engram_layer_ids),
        "engram_num_embeddings and engram_layer_ids differ in length",
    )
    _require(c.engram_pad_token_id < c.vocab_size, f"engram_pad_token_id = {c.engram_pad_token_id}: not in vocab_size")
    primes = engram_primes(len(c.engram_layer_ids), c.engram_max_ngram_size - 1, c.engram_n_heads, c.engram_vocab_size)
    for layer, rows, per_layer in zip(c.engram_layer_ids, c.engram_num_embeddings, primes, strict=True):
        wanted = sum(map(sum, per_layer))
        _require(rows == wanted, f"engram_num_embeddings: layer {layer} has {rows} rows, its primes sum to {wanted}")


def _check_ids_and_draft(c: DeepseekV41Config) -> None:
    for name in ("image_token_id", "dspark_noise_token_id", "bos_token_id", "eos_token_id"):
        _require(getattr(c, name) < c.vocab_size, f"{name} = {getattr(c, name)} is not below vocab_size")
    if c.num_nextn_predict_layers:
        _require(bool(c.dspark_target_layer_ids), "dspark_target_layer_ids is empty, but there are draft stages")
        _require(
            c.dspark_num_experts_per_tok <= c.dspark_n_routed_experts,
            "dspark_num_experts_per_tok is more than dspark_n_routed_experts",
        )
