"""Corners of the row and weight codecs; the goldens hold the rest (V4.1 specification, sections 7 and 8)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.quantization import (
    RowFormat,
    Rows,
    Weight,
    WeightFormat,
    decode_rows,
    decode_weight,
    encode_rows,
    encode_weight,
    round_rows,
)

PACKED = (RowFormat.E4M3_POW2_32, RowFormat.E2M1_E4M3_16, RowFormat.E2M1_POW2_32)
E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


@pytest.mark.parametrize(
    ("row_format", "channels", "nbytes"),
    [(RowFormat.E4M3_POW2_32, 512, 528), (RowFormat.E2M1_E4M3_16, 512, 288), (RowFormat.E2M1_POW2_32, 128, 68)],
)
def test_bytes_of_a_row(row_format: RowFormat, channels: int, nbytes: int) -> None:
    rows = encode_rows(torch.randn(3, channels), row_format)
    assert sum(plane.nbytes for plane in rows.planes()) == 3 * nbytes


@pytest.mark.parametrize("row_format", PACKED)
def test_zeros_stay_zero_and_empty_stays_empty(row_format: RowFormat) -> None:
    assert torch.equal(round_rows(torch.zeros(2, 64), row_format), torch.zeros(2, 64))
    assert round_rows(torch.empty(0, 64), row_format).shape == (0, 64)


@pytest.mark.parametrize("row_format", PACKED)
@settings(deadline=None)
@given(st.integers(-4, 20), st.integers(0, 2**31))
def test_rounding_twice_is_rounding_once(row_format: RowFormat, exponent: int, seed: int) -> None:
    values = torch.randn(4, 64, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    once = round_rows(values, row_format)
    assert torch.equal(round_rows(once, row_format), once)


def test_e2m1_rounds_half_to_the_even_code() -> None:
    halves = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    row = torch.cat((halves, -halves, torch.tensor([6.0, -6.0])))
    row = torch.cat((row, row.new_zeros(16)))
    wanted = torch.tensor([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0])
    got = round_rows(row[None], RowFormat.E2M1_POW2_32)[0]
    assert torch.equal(got[:7], wanted)
    assert torch.equal(got[7:14], -wanted)


def test_even_channel_lies_in_the_low_nibble() -> None:
    row = torch.zeros(1, 32)
    row[0, 0], row[0, 1] = 6.0, -0.5
    rows = encode_rows(row, RowFormat.E2M1_POW2_32)
    assert int(rows.data[0, 0]) == 0b1001_0111


@pytest.mark.parametrize(
    ("amax", "byte"),
    [(448.0, 127), (math.nextafter(448.0, 1e9) * (1 + 1e-6), 128), (224.0, 126), (0.0, 105), (1e-9, 105)],
)
def test_window_scale_is_the_exact_power_of_two(amax: float, byte: int) -> None:
    """A power of two stays itself; anything above goes to the next; small rows take the floor of 1e-4."""
    row = torch.zeros(1, 32)
    row[0, 3] = amax
    rows = encode_rows(row, RowFormat.E4M3_POW2_32)
    assert rows.scales is not None
    assert int(rows.scales) == byte


def test_latent_saturates() -> None:
    row = torch.full((1, 16), 1e6)
    assert torch.equal(round_rows(row, RowFormat.E2M1_E4M3_16), torch.full((1, 16), 6 * 448.0))


def test_rows_must_divide_into_groups() -> None:
    with pytest.raises(ValueError, match="groups of 32"):
        encode_rows(torch.zeros(1, 48), RowFormat.E4M3_POW2_32)


@pytest.mark.parametrize("row_format", list(RowFormat))
def test_block_major_pools_read_like_flat_ones(row_format: RowFormat) -> None:
    """A pool may be a strided view into blocks: row number = block * rows per block + row."""
    flat = encode_rows(torch.randn(24, 64), row_format)
    planes = []
    for plane in flat.planes():
        block = torch.zeros((6, 9, plane.shape[-1]), dtype=plane.dtype)
        block[:, 2:6] = plane.view(6, 4, -1)
        planes.append(block[:, 2:6])
    index = torch.tensor([[0, 23], [5, 4]])
    got, wanted = Rows(row_format, *planes).take(index), flat.take(index)
    assert torch.equal(decode_rows(got, torch.float32), decode_rows(wanted, torch.float32))


@pytest.mark.parametrize("shape", [(64, 64), (33, 70), (5, 32)])
@pytest.mark.parametrize("weight_format", [WeightFormat.FP8_BLOCK, WeightFormat.FP8_ROW, WeightFormat.MXFP4])
def test_weights_round_trip(weight_format: WeightFormat, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape)
    once = decode_weight(*encode_weight(weight, weight_format), weight_format, torch.float32)
    assert torch.equal(decode_weight(*encode_weight(once, weight_format), weight_format, torch.float32), once)
    assert (once - weight).abs().max() < weight.abs().max() * (0.2 if weight_format is WeightFormat.MXFP4 else 0.07)


def test_weight_scales_apply_to_their_block() -> None:
    payload = torch.ones(40, 64).to(torch.float8_e4m3fn)
    scales = torch.tensor([[127, 128], [126, 120]], dtype=torch.uint8)
    weight = decode_weight(payload, scales, WeightFormat.FP8_BLOCK, torch.float32)
    corners = [weight[0, 0], weight[31, 63], weight[32, 31], weight[39, 32]]
    assert [float(c) for c in corners] == [1.0, 2.0, 0.5, 2.0**-7]


def test_mxfp4_nibbles() -> None:
    payload = torch.tensor([[0x10 * 9 + 7]], dtype=torch.uint8).view(torch.int8)
    weight = decode_weight(payload, torch.tensor([[128]], dtype=torch.uint8), WeightFormat.MXFP4, torch.float32)
    assert weight.tolist() == [[12.0, -1.0]]


@pytest.mark.parametrize("weight_format", [WeightFormat.FLOAT, WeightFormat.FP8_ROW])
def test_lookup_of_rows(weight_format: WeightFormat) -> None:
    values = torch.randn(10, 64)
    stored = (values, None) if weight_format is WeightFormat.FLOAT else encode_weight(values, weight_format)
    weight = Weight(weight_format, *stored)
    index = torch.tensor([[3, 3], [9, 0]])
    assert torch.equal(weight.rows(index, torch.float32), weight.dense(torch.float32)[index])
    assert weight.rows(index[:0], torch.float32).shape == (0, 2, 64)
