"""Everything one sequence keeps between forward passes (V4.1 specification, section 9)."""

import torch

from kernels.quantization import Rows
from workers.models.deepseek_v41.cache_rows import OpenGroups, PagedRows, WindowRing, empty_rows
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.errors import CacheError
from workers.models.deepseek_v41.formats import CacheFormats

FIRST_PAGED_ROWS = 64


class SequenceCache:
    """Windows of every layer and draft stage, latents and index keys of the KV sources, open groups, token ids.

    `length` tokens have been processed; the next one runs at that position. Paged rows are written for `paged_tokens`
    tokens, more than `length` while a prefix hit is being replayed: rows below that are exact and never rewritten.
    """

    def __init__(
        self,
        config: DeepseekV41Config,
        formats: CacheFormats,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        device = torch.device(device)
        wide = torch.promote_types(dtype, torch.float32)
        self.config, self.formats, self.dtype = config, formats, dtype
        self.length = 0
        self.paged_tokens = 0
        self.ids = torch.empty(0, dtype=torch.int64, device=device)
        ring_rows = config.sliding_window + config.dspark_block_size

        def ring() -> WindowRing:
            return WindowRing(empty_rows(ring_rows, config.head_dim, formats.window, dtype, device))

        self.windows = [ring() for _ in range(config.num_hidden_layers)]
        self.draft_windows = [ring() for _ in range(config.num_nextn_predict_layers)]
        self.latents: dict[int, PagedRows] = {}
        self.index_keys: dict[int, PagedRows] = {}
        self.open_groups: dict[int, OpenGroups] = {}
        for layer in config.kv_source_layer_ids:
            self.latents[layer] = PagedRows(
                empty_rows(FIRST_PAGED_ROWS, config.head_dim, formats.latent, dtype, device)
            )
            self.index_keys[layer] = PagedRows(
                empty_rows(FIRST_PAGED_ROWS, config.index_head_dim, formats.index_key, dtype, device)
            )
            if config.ratio(layer) == 2:
                self.open_groups[layer] = OpenGroups(config.dspark_block_size + 2, config.head_dim, wide, device)

    def append_ids(self, ids: torch.Tensor) -> None:
        """Note the ids of the coming positions: the Engram look-back needs the last few, a replay any of them."""
        self.ids = torch.cat((self.ids[: self.length], ids))

    def rollback(self, length: int) -> None:
        """Forget the tokens from position `length` on (rejected drafts), at most a draft's worth.

        Raises `CacheError` when window rows that the next token sees are gone, and leaves the cache as it was.
        """
        if not 0 <= length <= self.length:
            raise CacheError(f"cannot go back to {length}: {self.length} tokens have been processed")
        for ring in self.windows:
            ring.require(length, self.config.sliding_window - 1)
        for ring in self.draft_windows:
            ring.require(length, self.config.sliding_window)
        for ring in (*self.windows, *self.draft_windows):
            ring.truncate(length)
        self.length = self.paged_tokens = length
        self.ids = self.ids[:length]

    def replay_from(self, start: int, windows: dict[int, Rows] | None = None) -> None:
        """Go back to `start` to run tokens again that paged rows exist for, without rewriting those.

        All window rows are dropped; `windows` gives back, for the layers it names, the rows of the positions just
        before `start` (as many as there are). What it does not name starts empty: nothing below `start` is visible
        there.
        """
        if not 0 <= start <= self.length:
            raise CacheError(f"cannot replay from {start}: {self.length} tokens have been processed")
        for ring in (*self.windows, *self.draft_windows):
            ring.reset(start)
        for layer, rows in (windows or {}).items():
            self.windows[layer].reset(start - len(rows))
            self.windows[layer].extend(start - len(rows), rows, 0)
        self.length = start

    def prefix(self, tokens: int, ids: torch.Tensor) -> "SequenceCache":
        """A new cache with the paged rows of the first `tokens` tokens and nothing else: a prefix hit.

        `tokens` must end every open group. `ids` are the hit's token ids.
        """
        if any(tokens % self.config.ratio(layer) for layer in self.latents) or tokens > self.paged_tokens:
            raise CacheError(f"{tokens} tokens are no usable prefix of {self.paged_tokens}")
        hit = SequenceCache(self.config, self.formats, self.dtype, self.ids.device)
        for layer in self.latents:
            rows = tokens // self.config.ratio(layer)
            hit.latents[layer].write(0, self.latents[layer].view(rows))
            hit.index_keys[layer].write(0, self.index_keys[layer].view(rows))
        hit.ids = ids[:tokens].clone()
        hit.length = hit.paged_tokens = tokens
        return hit

    def window_rows(self, first: int, last: int, layers: range) -> dict[int, Rows]:
        """Copies of the window rows of positions [first, last): what a sidecar stores."""
        return {layer: self.windows[layer].span(first, last) for layer in layers}
