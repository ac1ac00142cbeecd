"""The model's caches as the engine's groups (V4.1 specification, section 9).

Paged: one row per group of tokens in each KV source, latent and index key side by side; sources of one ratio form a
group. Windows: rings of the window and a draft, apart for encoder (layers 0..cut, what a prefix hit may restore),
decoder and draft stages. State: k and g of open ratio-2 groups. The token ids that Engram looks back at come with each
segment of a batch.
"""

import torch

from kernels.quantization import RowFormat
from workers.models.base import CacheSpec, PagedGroup, Plane, StateSection, StoredWindows, WindowGroup
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.formats import CacheFormats

LAYOUT_VERSION = 3
ENCODER_WINDOW, DECODER_WINDOW, DRAFT_WINDOW = "encoder_window", "decoder_window", "draft_window"
OPEN_GROUPS = "open_groups"
WINDOW, LATENT, INDEX_KEY = "window", "latent", "index_key"
SCALES = "_scales"


def sources_group(ratio: int) -> str:
    """The paged group of the KV sources of one ratio."""
    return f"sources_{ratio}"


def open_plane(layer: int) -> str:
    return f"layer_{layer}"


def row_planes(name: str, channels: int, row_format: RowFormat, dtype: torch.dtype) -> tuple[Plane, ...]:
    """The planes of a row: its data and, where it is packed, its scales apart from it."""
    if row_format is RowFormat.FLOAT:
        return (Plane(name, dtype, (channels,)),)
    return (
        Plane(name, torch.uint8, (channels // row_format.channels_per_byte,), packing=row_format),
        Plane(name + SCALES, torch.uint8, (channels // row_format.channels_per_scale,), packing=row_format),
    )


def build_cache_spec(config: DeepseekV41Config, formats: CacheFormats, dtype: torch.dtype) -> CacheSpec:
    """890 bytes of paged rows per token at the official sizes and trained formats."""
    c = config
    latent = row_planes(LATENT, c.head_dim, formats.latent, dtype)
    index_key = row_planes(INDEX_KEY, c.index_head_dim, formats.index_key, dtype)
    by_ratio: dict[int, list[int]] = {}
    for layer in c.kv_source_layer_ids:
        by_ratio.setdefault(c.ratio(layer), []).append(layer)
    paged = tuple(
        PagedGroup(sources_group(ratio), tuple(layers), ratio, latent + index_key)
        for ratio, layers in sorted(by_ratio.items(), reverse=True)
    )
    windows, states = _windows(c, formats, dtype), _states(c, by_ratio, dtype)
    stored = StoredWindows(ENCODER_WINDOW, c.sliding_window)
    return CacheSpec(LAYOUT_VERSION, c.sliding_window, paged, windows, states, stored)


def ring_rows(config: DeepseekV41Config, *, encoder: bool) -> int:
    """Rows of a ring: the window and a draft, for the encoder's three windows, so that where a unit ends its last two
    blocks can be kept (sidecars)."""
    windows = 3 if encoder else 1
    return windows * config.sliding_window + config.dspark_block_size


def _windows(c: DeepseekV41Config, formats: CacheFormats, dtype: torch.dtype) -> tuple[WindowGroup, ...]:
    row = row_planes(WINDOW, c.head_dim, formats.window, dtype)
    groups = {
        ENCODER_WINDOW: range(c.cut + 1),
        DECODER_WINDOW: range(c.cut + 1, c.num_hidden_layers),
        DRAFT_WINDOW: range(c.num_nextn_predict_layers),
    }
    return tuple(
        WindowGroup(name, tuple(layers), ring_rows(c, encoder=name == ENCODER_WINDOW), row)
        for name, layers in groups.items()
        if layers
    )


def _states(c: DeepseekV41Config, by_ratio: dict[int, list[int]], dtype: torch.dtype) -> tuple[StateSection, ...]:
    wide = torch.promote_types(dtype, torch.float32)
    # A rejected draft may end inside an older group, so that many tokens' k and g are kept.
    open_shape = (c.dspark_block_size + 2, 2, c.head_dim)
    planes = tuple(Plane(open_plane(layer), wide, open_shape) for layer in by_ratio.get(2, ()))
    return (StateSection(OPEN_GROUPS, 1, planes),) if planes else ()
