"""Tiny Llama folders in Hugging Face layout, with random weights, made by `transformers` itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig as HFConfig
from transformers import LlamaForCausalLM

from workers.engine.layout import CacheLayout, PoolViews
from workers.models.base import Batch, CausalModel, Segment
from workers.models.llama.model import LlamaModel

VOCABULARY = 120


def make_folder(folder: Path, **changes: Any) -> Any:
    """Writes the folder and returns the `transformers` model in float32. `shards` splits the weights."""
    torch.manual_seed(0)
    shard_size = changes.pop("shard_size", "1GB")
    values = {
        "vocab_size": VOCABULARY,
        "hidden_size": 96,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "initializer_range": 0.15,
    }
    model = LlamaForCausalLM(HFConfig(**(values | changes))).eval()
    model.save_pretrained(folder, max_shard_size=shard_size)
    vocabulary = {f"w{n}": n for n in range(VOCABULARY - 2)} | {"<s>": VOCABULARY - 2, "</s>": VOCABULARY - 1}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return model


class Runner:
    """One request on a model: a pool of its own, steps of any size."""

    def __init__(self, model: CausalModel, blocks: int = 64) -> None:
        layout = CacheLayout(model.cache_spec())
        self.model = model
        self.views: PoolViews = layout.views(torch.zeros(blocks, layout.block_bytes, dtype=torch.uint8))
        self.slots = torch.randperm(blocks, generator=torch.Generator().manual_seed(1)).tolist()
        self.context = 0

    def step(self, tokens: list[int]) -> torch.Tensor:
        """Logits [len(tokens), vocab]."""
        count = len(tokens)
        segment = Segment(start=0, count=count, context=self.context, slots=self.slots)
        batch = Batch(
            tokens=torch.tensor(tokens),
            positions=torch.arange(self.context, self.context + count),
            segments=[segment],
            logit_rows=torch.arange(count),
        )
        self.context += count
        return self.model.forward(batch, self.views).logits


def logits(model: LlamaModel, tokens: list[int]) -> torch.Tensor:
    return Runner(model).step(tokens)
