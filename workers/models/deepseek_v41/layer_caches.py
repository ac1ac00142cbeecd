"""The caches of each layer as pools of rows, over whatever memory `workers.models.base.CacheViews` shows."""

from __future__ import annotations

from functools import cache

import torch

from kernels.quantization import RowFormat, Rows
from workers.models.base import CacheViews
from workers.models.deepseek_v41.cache_spec import (
    DECODER_WINDOW,
    DRAFT_WINDOW,
    ENCODER_WINDOW,
    INDEX_KEY,
    LATENT,
    OPEN_GROUPS,
    SCALES,
    WINDOW,
    open_plane,
    sources_group,
)
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.formats import CacheFormats


class LayerCaches:
    """Pools by layer: paged ones are [slots, rows of a block, ...], rings and states [seats, rows, ...]."""

    def __init__(self, config: DeepseekV41Config, formats: CacheFormats, views: CacheViews) -> None:
        self.config, self.formats, self.views = config, formats, views
        # Kept per instance: the views are made once and so are the pools over them.
        self.window = cache(self._window)
        self.draft_window = cache(self._draft_window)
        self.latents = cache(self._latents)
        self.index_keys = cache(self._index_keys)
        self.open_groups = cache(self._open_groups)

    def _window(self, layer: int) -> Rows:
        group = ENCODER_WINDOW if layer <= self.config.cut else DECODER_WINDOW
        return self._ring(group, layer)

    def _draft_window(self, stage: int) -> Rows:
        return self._ring(DRAFT_WINDOW, stage)

    def _ring(self, group: str, layer: int) -> Rows:
        row_format, view = self.formats.window, self.views.window
        scales = None if row_format is RowFormat.FLOAT else view(group, layer, WINDOW + SCALES)
        return Rows(row_format, view(group, layer, WINDOW), scales)

    def _latents(self, layer: int) -> Rows:
        return self._paged(layer, LATENT, self.formats.latent)

    def _index_keys(self, layer: int) -> Rows:
        return self._paged(layer, INDEX_KEY, self.formats.index_key)

    def _paged(self, layer: int, plane: str, row_format: RowFormat) -> Rows:
        group, view = sources_group(self.config.ratio(layer)), self.views.paged
        scales = None if row_format is RowFormat.FLOAT else view(group, layer, plane + SCALES)
        return Rows(row_format, view(group, layer, plane), scales)

    def _open_groups(self, layer: int) -> torch.Tensor:
        """[seats, open tokens, 2, head_dim]: k and g, by position modulo open tokens."""
        return self.views.state(OPEN_GROUPS, open_plane(layer))
