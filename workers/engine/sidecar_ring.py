"""Copies of window rows: out of a running request's seat, and back into another's."""

from __future__ import annotations

import torch

from workers.engine.layout import CacheLayout, PoolViews
from workers.models.base import StoredWindows


class Ring:
    """Copies rows of one window group between seats and sidecars: a sidecar is layer after layer, plane after plane,
    the rows of one block."""

    def __init__(self, layout: CacheLayout, views: PoolViews, stored: StoredWindows) -> None:
        group = next(group for group in layout.spec.windows if group.name == stored.group)
        assert group.rows >= 3 * stored.window - 1
        self.rows = group.rows
        self.block_tokens = layout.block_tokens
        self._views = [views.window(group.name, layer, p.name) for layer in group.layers for p in group.planes]
        self.sidecar_bytes = sum(_row_bytes(view) for view in self._views) * self.block_tokens
        self.kind = f"{group.name}.v{layout.spec.layout_version}.{self.sidecar_bytes}"

    def _places(self, block: int) -> torch.Tensor:
        first = block * self.block_tokens
        return torch.arange(first, first + self.block_tokens) % self.rows

    def copy_out(self, seat: int, block: int) -> bytes:
        places = self._places(block)
        parts = [view[seat, places].contiguous().view(torch.uint8).numpy().tobytes() for view in self._views]
        return b"".join(parts)

    def copy_in(self, seat: int, block: int, data: bytes) -> None:
        places, at = self._places(block), 0
        for view in self._views:
            size = _row_bytes(view) * self.block_tokens
            rows = torch.frombuffer(bytearray(data[at : at + size]), dtype=torch.uint8).view(view.dtype)
            view[seat, places] = rows.view(self.block_tokens, *view.shape[2:])
            at += size


def _row_bytes(view: torch.Tensor) -> int:
    return view[0, 0].numel() * view.element_size()
