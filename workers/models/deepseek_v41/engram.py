"""Engram: n-grams of token ids look up rows that are added to the streams (V4.1 specification, section 3).

Hash at position p, with v_k the compressed id of token p-k (from the first image token or the text's start on, going
back, that of the pad token): `a = v_0 m_0; a ^= v_k m_k`; the (k+1)-gram columns are `a mod prime + column offset`.

Injection, e the concatenated rows: `kv = wkv e`, the first n*D its keys, the last D the value v;
`s_k = <R[k] q_weight[k] k_weight[k], key[k]> / (rms(R[k]) rms(key[k]) sqrt(D))`,
`R[k] += sigmoid(sign(s_k) sqrt(max(|s_k|, 1e-6))) v`, nothing where the token itself is the image token.
"""

import itertools

import torch

from kernels import engram
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.primes import engram_multipliers, engram_primes
from workers.models.deepseek_v41.weights import WeightShelf


class EngramHash:
    """Row numbers for every Engram layer. They depend on token ids only, so they can be fetched ahead."""

    def __init__(self, config: DeepseekV41Config, token_map: torch.Tensor) -> None:
        self.config, self.token_map = config, token_map
        orders, heads = config.engram_max_ngram_size - 1, config.engram_n_heads
        drawn = engram_primes(len(config.engram_layer_ids), orders, heads, config.engram_vocab_size)
        self.tables = []
        for layer, per_layer in zip(config.engram_layer_ids, drawn, strict=True):
            flat = [prime for row in per_layer for prime in row]
            offsets = [0, *itertools.accumulate(flat)][:-1]
            multipliers = engram_multipliers(layer, orders + 1, config.engram_compressed_vocab_size)
            as_tensor = [torch.tensor(v, dtype=torch.int64) for v in (multipliers, flat, offsets)]
            self.tables.append((as_tensor[0], as_tensor[1].view(orders, heads), as_tensor[2].view(orders, heads)))

    def __call__(self, windows: torch.Tensor) -> torch.Tensor:
        """int64 [T, Engram layers, columns]; windows int64 [T, N]: the ids at p, p-1, ..., -1 before the text."""
        c = self.config
        rows = [
            engram.hash_rows(
                windows,
                self.token_map,
                multipliers=multipliers,
                primes=primes,
                offsets=offsets,
                image_token_id=c.image_token_id,
                pad_token_id=c.engram_pad_token_id,
            )
            for multipliers, primes, offsets in self.tables
        ]
        columns = (c.engram_max_ngram_size - 1) * c.engram_n_heads
        return torch.stack(rows, dim=1) if rows else windows.new_empty((len(windows), 0, columns))


class Engram:
    """The table and the gate of one Engram layer. The table stays in its stored format: it is the largest tensor."""

    def __init__(self, config: DeepseekV41Config, shelf: WeightShelf, name: str) -> None:
        self.config = config
        self.table = shelf.weight(f"{name}.embed")
        self.wkv = shelf.matrix(f"{name}.wkv")
        self.q_weight = shelf.vector(f"{name}.q_weight")
        self.k_weight = shelf.vector(f"{name}.k_weight")

    def fetch(self, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """[T, columns * head_dim] for rows int64 [T, columns] of this layer's table."""
        return self.table.rows(rows, dtype).flatten(1)

    def inject(self, residual: torch.Tensor, fetched: torch.Tensor, is_image: torch.Tensor) -> tuple[torch.Tensor]:
        """The streams [T, n, D] with this layer's n-grams; is_image bool [T]: the image token itself."""
        eps = self.config.rms_norm_eps
        key_value = self.wkv.linear(fetched)
        return (engram.inject(residual, key_value, self.q_weight, self.k_weight, is_image, eps=eps),)
