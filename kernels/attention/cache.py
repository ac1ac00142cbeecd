"""One layer's keys and values in the paged pool, and the writing of a step's rows into them."""

from __future__ import annotations

from functools import cached_property

import torch

STRIP = 16
"""The native kernels take block rows and channels in multiples of it."""


class PagedCache:
    """Views strided over the pool: `keys` [slots, kv_heads, channels, rows] and `values` [slots, kv_heads, rows,
    channels].

    A block keeps its keys by channel and its values by row, so that both products of attention run along memory.
    """

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        slots, kv_heads, channels, rows = keys.shape
        if values.shape != (slots, kv_heads, rows, channels) or values.dtype != keys.dtype:
            raise ValueError(f"values {tuple(values.shape)} {values.dtype} do not go with keys {tuple(keys.shape)}")
        self.keys = keys
        self.values = values
        self.kv_heads = kv_heads
        self.channels = channels
        self.rows = rows

    @cached_property
    def plain(self) -> bool:
        """Whether it lies as the native kernels read it; below a slot without gaps, in multiples of a strip."""
        size = self.channels * self.rows
        return (
            self.rows % STRIP == 0
            and self.channels % STRIP == 0
            and self.keys.dtype in (torch.float32, torch.bfloat16)
            and self.keys.stride()[1:] == (size, self.rows, 1)
            and self.values.stride()[1:] == (size, self.channels, 1)
        )

    def gather(self, blocks: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 keys and values [kv_heads, length, channels] of one request's blocks."""
        keys = self.keys.index_select(0, blocks).float().permute(1, 0, 3, 2).flatten(1, 2)
        values = self.values.index_select(0, blocks).float().permute(1, 0, 2, 3).flatten(1, 2)
        return keys[:, :length], values[:, :length]

    def put(self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Store keys and values [n, kv_heads, channels] at (slot, row) each, cast to the cache's dtype."""
        self.keys.permute(0, 3, 1, 2)[slots, rows] = keys.to(self.keys.dtype)
        self.values.permute(0, 2, 1, 3)[slots, rows] = values.to(self.values.dtype)
