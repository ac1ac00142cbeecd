"""A configuration small enough for property tests, random checkpoints of it, and models loaded from them."""

import json
from dataclasses import replace
from pathlib import Path

import torch

from workers.models.deepseek_v41.config import DeepseekV41Config, YarnScaling
from workers.models.deepseek_v41.nano import random_tensors, write_checkpoint

TINY = DeepseekV41Config(
    vocab_size=192,
    hidden_size=32,
    num_hidden_layers=8,
    num_attention_heads=2,
    head_dim=32,
    qk_rope_head_dim=16,
    q_lora_rank=32,
    o_groups=2,
    o_lora_rank=16,
    sliding_window=8,
    compress_ratios=(0, 0, 2, 2, 2, 1, 1, 1),
    kv_source_layer_ids=(2, 4, 5),
    index_source_layer_ids=(2, 4, 5, 7),
    candidate_source_layer_id=5,
    candidate_topk_blocks=4,
    candidate_block_size=4,
    index_n_heads=2,
    index_head_dim=32,
    index_topk=8,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rope_scaling=YarnScaling(factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=4096),
    max_position_embeddings=512,
    rms_norm_eps=1e-20,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
    n_routed_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    routed_scaling_factor=1.5,
    swiglu_limit=10.0,
    engram_layer_ids=(1, 3),
    engram_num_embeddings=(384, 552),
    engram_vocab_size=50,
    engram_max_ngram_size=4,
    engram_n_heads=2,
    engram_head_dim=32,
    engram_pad_token_id=2,
    engram_compressed_vocab_size=100,
    image_token_id=180,
    num_nextn_predict_layers=2,
    dspark_block_size=3,
    dspark_noise_token_id=190,
    dspark_markov_rank=16,
    dspark_target_layer_ids=(5, 6, 7),
    dspark_n_routed_experts=4,
    dspark_num_experts_per_tok=2,
)
TINY_QUANTIZED = replace(TINY, quantized=True)


def write_tiny(folder: Path, config: DeepseekV41Config = TINY, seed: int = 3, shards: int = 1) -> Path:
    write_checkpoint(folder, config, random_tensors(config, seed), shards)
    entries = [token % config.engram_compressed_vocab_size for token in range(config.vocab_size)]
    (folder / "token_map.json").write_text(json.dumps(entries))
    return folder


def random_ids(length: int, seed: int, config: DeepseekV41Config = TINY) -> torch.Tensor:
    """Text with an image token now and then, so that the image rules are never idle."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, config.vocab_size, (length,), generator=generator)
    images = torch.rand(length, generator=generator) < 0.08
    sentinels = config.image_token_id + torch.randint(0, 5, (length,), generator=generator)
    return torch.where(images, sentinels, ids)


def token_windows(ids: torch.Tensor, size: int) -> torch.Tensor:
    """int64 [T, size]: the ids at p, p-1, ..., -1 before the text: what Engram hashes."""
    padded = torch.cat((torch.full((size - 1,), -1), ids))
    return padded.unfold(0, size, 1).flip(1)
