"""Codecs in plain torch. Every rule is V4.1 specification, section 7 (rows) or section 8 (weights).

Arithmetic is float32, whatever the model computes in: the codes are part of the trained model.
"""

import functools
import math

import torch

from kernels.quantization.formats import RowFormat, Rows, WeightFormat

E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E4M3_MAX = 448.0
E4M3_NAN, POW2_NAN = 0x7F, 0xFF
"""Bytes of scales."""
BLOCK = 32


@functools.cache
def _pow2_table(device: torch.device) -> torch.Tensor:
    return torch.tensor([math.ldexp(1.0, b - 127) for b in range(255)] + [math.nan], device=device)


@functools.cache
def _e2m1_table(device: torch.device) -> torch.Tensor:
    return torch.tensor([*E2M1_MAGNITUDES, *(-m for m in E2M1_MAGNITUDES)], device=device)


def pow2_from_bytes(scales: torch.Tensor) -> torch.Tensor:
    """ue8m0: byte b is 2^(b-127), 255 is not a number. By table: exp2 need not be exact, and 2^-127 is
    subnormal.
    """
    return _pow2_table(scales.device)[scales.long()]


def pow2_ceil_bytes(values: torch.Tensor) -> torch.Tensor:
    """The ue8m0 byte of `2^ceil(log2(v))` for positive float32 `v`, exactly: from the exponent, not from a
    logarithm.
    """
    mantissa, exponent = torch.frexp(values)
    ceiling = exponent - (mantissa == 0.5).to(exponent.dtype)
    return (ceiling + 127).clamp(0, 254).to(torch.uint8)


def e4m3_bytes(values: torch.Tensor) -> torch.Tensor:
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def e4m3_values(data: torch.Tensor) -> torch.Tensor:
    return data.view(torch.float8_e4m3fn).float()


def e2m1_pack(values: torch.Tensor) -> torch.Tensor:
    """Round half to the even code, saturate at 6, pack [..., c] into [..., c/2] with the even channel in
    the low nibble.
    """
    a = values.abs()
    # A midpoint goes up where the code above is even (>=) and down where the code below is (>).
    code = (a > 0.25).to(torch.uint8)
    for reached in (a >= 0.75, a > 1.25, a >= 1.75, a > 2.5, a >= 3.5, a > 5.0):
        code += reached
    code |= values.signbit().to(torch.uint8) << 3
    return code[..., 0::2] | (code[..., 1::2] << 4)


def e2m1_unpack(data: torch.Tensor) -> torch.Tensor:
    raw = data.view(torch.uint8)
    return _e2m1_table(data.device)[torch.stack((raw & 15, raw >> 4), dim=-1).flatten(-2).long()]


def encode_rows(values: torch.Tensor, row_format: RowFormat) -> Rows:
    """A group of channels with an infinity or a NaN decodes to NaN throughout."""
    if row_format is RowFormat.FLOAT:
        return Rows(row_format, values)
    per_scale = row_format.channels_per_scale
    if values.shape[-1] % per_scale:
        raise ValueError(f"rows of {values.shape[-1]} channels do not divide into groups of {per_scale}")
    groups = values.float().unflatten(-1, (-1, per_scale))
    amax = groups.abs().amax(-1)
    finite = amax.isfinite()
    groups, amax = torch.where(finite[..., None], groups, 0.0), torch.where(finite, amax, 0.0)
    if row_format is RowFormat.E4M3_POW2_32:
        scales = pow2_ceil_bytes(amax.clamp(min=1e-4) / E4M3_MAX)
        data = e4m3_bytes(groups / pow2_from_bytes(scales)[..., None])
    elif row_format is RowFormat.E2M1_E4M3_16:
        scales = e4m3_bytes((amax / 6).clamp(2.0**-9, E4M3_MAX))
        data = e2m1_pack(groups / e4m3_values(scales)[..., None])
    else:
        scales = pow2_ceil_bytes(amax.clamp(min=6 * 2.0**-126) / 6)
        data = e2m1_pack(groups / pow2_from_bytes(scales)[..., None])
    # No format has an infinity, and E2M1 no NaN: a scale of NaN keeps the fault in sight of whoever reads the row.
    scales = torch.where(finite, scales, E4M3_NAN if row_format is RowFormat.E2M1_E4M3_16 else POW2_NAN)
    return Rows(row_format, data.flatten(-2), scales)


def decode_rows(rows: Rows, dtype: torch.dtype) -> torch.Tensor:
    if rows.format is RowFormat.FLOAT:
        return rows.data.to(dtype)
    assert rows.scales is not None
    packed_e2m1 = rows.format.channels_per_byte == 2
    values = e2m1_unpack(rows.data) if packed_e2m1 else e4m3_values(rows.data)
    e4m3_scales = rows.format is RowFormat.E2M1_E4M3_16
    scales = e4m3_values(rows.scales) if e4m3_scales else pow2_from_bytes(rows.scales)
    groups = values.unflatten(-1, (-1, rows.format.channels_per_scale))
    return (groups * scales[..., None]).flatten(-2).to(dtype)


def _spread(scales: torch.Tensor, columns: int) -> torch.Tensor:
    return pow2_from_bytes(scales).repeat_interleave(BLOCK, dim=-1)[..., :columns]


def decode_weight(
    data: torch.Tensor, scales: torch.Tensor | None, weight_format: WeightFormat, dtype: torch.dtype
) -> torch.Tensor:
    if weight_format is WeightFormat.FLOAT:
        return data.to(dtype)
    assert scales is not None
    values = e2m1_unpack(data) if weight_format is WeightFormat.MXFP4 else e4m3_values(data)
    spread = _spread(scales, values.shape[-1])
    if weight_format is WeightFormat.FP8_BLOCK:
        spread = spread.repeat_interleave(BLOCK, dim=-2)[..., : values.shape[-2], :]
    return values.mul_(spread).to(dtype)


def encode_weight(values: torch.Tensor, weight_format: WeightFormat) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = values.shape
    padded = torch.nn.functional.pad(values.float(), (0, -columns % BLOCK, 0, 0))
    amax = padded.unflatten(-1, (-1, BLOCK)).abs().amax(-1)
    largest = 6.0 if weight_format is WeightFormat.MXFP4 else E4M3_MAX
    if weight_format is WeightFormat.FP8_BLOCK:
        blocks = torch.nn.functional.pad(amax, (0, 0, 0, -rows % BLOCK))
        amax = blocks.unflatten(0, (-1, BLOCK)).amax(1)
    scales = pow2_ceil_bytes(amax.clamp(min=2.0**-100) / largest)
    spread = _spread(scales, columns)
    if weight_format is WeightFormat.FP8_BLOCK:
        spread = spread.repeat_interleave(BLOCK, dim=0)[:rows]
    scaled = values.float() / spread
    if weight_format is WeightFormat.MXFP4:
        return e2m1_pack(scaled).view(torch.int8), scales
    return e4m3_bytes(scaled).view(torch.float8_e4m3fn), scales
