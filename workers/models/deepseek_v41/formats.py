"""Which format each kind of cache row has (V4.1 specification, section 7)."""

import enum

from kernels.quantization import RowFormat


class CacheFormats(enum.StrEnum):
    """`trained` emulates what the released model was trained with, even in float runs; `float` stores rows as they
    are.
    """

    FLOAT = "float"
    TRAINED = "trained"

    @property
    def window(self) -> RowFormat:
        """Window rows after RoPE, the drafter's context and block rows too."""
        return RowFormat.FLOAT if self is CacheFormats.FLOAT else RowFormat.E4M3_POW2_32

    @property
    def latent(self) -> RowFormat:
        """Latents after RoPE."""
        return RowFormat.FLOAT if self is CacheFormats.FLOAT else RowFormat.E2M1_E4M3_16

    @property
    def index_key(self) -> RowFormat:
        """Index keys and index queries after RoPE."""
        return RowFormat.FLOAT if self is CacheFormats.FLOAT else RowFormat.E2M1_POW2_32
