"""Quantised rows and weights: e4m3, e2m1 (fp4), and scales that are powers of two (ue8m0) or e4m3.

The rules are V4.1 specification, sections 7 and 8. Inputs must be finite. Empty inputs give empty outputs.
"""

import torch

from kernels.quantization import native, reference
from kernels.quantization.formats import Places, RowFormat, Rows, WeightFormat
from kernels.quantization.weights import Weight

__all__ = [
    "Places",
    "RowFormat",
    "Rows",
    "Weight",
    "WeightFormat",
    "decode_rows",
    "decode_weight",
    "encode_rows",
    "encode_weight",
    "read_rows",
    "round_rows",
    "write_rows",
]


def encode_rows(values: torch.Tensor, row_format: RowFormat) -> Rows:
    """Pack float rows [..., c] into planes: data uint8 [..., c or c/2], scales uint8 [..., c/32 or c/16].

    Payloads round half to even; a scale is at least the format's floor, so a row of zeros encodes to zeros.
    Raises `ValueError` when the scale's group does not divide c. `RowFormat.FLOAT` returns the values as
    they are.
    """
    return reference.encode_rows(values, row_format)


def decode_rows(rows: Rows, dtype: torch.dtype) -> torch.Tensor:
    """Unpack rows into float [..., c]. Exact in float32; rounded once for narrower dtypes."""
    return reference.decode_rows(rows, dtype)


def round_rows(values: torch.Tensor, row_format: RowFormat) -> torch.Tensor:
    """What is left of float rows after encoding and decoding, in their own dtype."""
    if row_format is RowFormat.FLOAT:
        return values
    if native.takes(row_format, values.shape[-1], values.dtype, values.device):
        return native.round_rows(values, row_format)
    return decode_rows(encode_rows(values, row_format), values.dtype)


def read_rows(pool: Rows, places: Places, dtype: torch.dtype) -> torch.Tensor:
    """The rows of a block-major pool at `places`, all of which are in it, as floats [*places' shape, c]."""
    if native.takes(pool.format, pool.channels, dtype, pool.data.device):
        return native.read(pool, places)
    return decode_rows(pool.at(places), dtype)


def write_rows(
    pool: Rows, places: Places, values: torch.Tensor, dtype: torch.dtype | None = None
) -> torch.Tensor | None:
    """Store float rows [n, c] in a block-major pool; with a `dtype`, what reading them there would give."""
    if native.takes(pool.format, pool.channels, values.dtype, values.device) and dtype in (None, torch.float32):
        return native.write(pool, places, values, rounded=dtype is not None)
    packed = encode_rows(values, pool.format)
    pool.put(places, packed)
    return None if dtype is None else decode_rows(packed, dtype)


def decode_weight(
    data: torch.Tensor, scales: torch.Tensor | None, weight_format: WeightFormat, dtype: torch.dtype
) -> torch.Tensor:
    """Dequantise a stored weight [..., r, c (or c/2)] (leading axes, as of stacked experts, may precede) to `dtype`.

    `W[r,c] = payload[r,c] * 2^(scale - 127)` with the scale of the 32x32 block, or of the row and 32
    columns. Scales are uint8 and read as bytes. Works in float32, so it needs four bytes an element beside
    the result.
    """
    return reference.decode_weight(data, scales, weight_format, dtype)


def encode_weight(values: torch.Tensor, weight_format: WeightFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise a float weight [r, c] to (payload, uint8 scales) as a checkpoint stores them: e4m3 or int8 nibble pairs.

    The scale is the smallest power of two that keeps the block's largest magnitude in range. MXFP4 needs an
    even c.
    """
    return reference.encode_weight(values, weight_format)
