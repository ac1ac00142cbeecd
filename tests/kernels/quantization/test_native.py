"""Rows written, read and rounded by the C++ kernels have the codes of the definition, to the bit."""

import pytest
import torch

from kernels import quantization as q
from kernels.quantization import Places, RowFormat, Rows, native


@pytest.mark.parametrize("row_format", [f for f in RowFormat if f is not RowFormat.FLOAT])
def test_native_codes(seeded: int, row_format: RowFormat) -> None:
    torch.manual_seed(seeded)
    values = torch.randn(600, 64) * torch.exp(torch.randn(600, 1) * 6)
    values[0], values[1], values[2] = 0, 1e-30, -0.0
    values[3:60] = torch.randint(-24, 25, (57, 64)) / 4  # half-way cases
    if not native.takes(row_format, 64, values.dtype, values.device):
        pytest.skip("no C++ compiler here")
    packed = q.encode_rows(values, row_format)
    assert torch.equal(q.round_rows(values, row_format), q.decode_rows(packed, torch.float32))
    data, scales = packed.planes()
    # A pool as the engine has it: blocks and rows with gaps between them.
    wide = torch.zeros(30, 25, data.shape[1] + 5, dtype=torch.uint8)
    pool = Rows(row_format, wide[..., : data.shape[1]], torch.zeros(30, 25, scales.shape[1], dtype=torch.uint8))
    number = torch.randperm(750)[:600]
    places = Places(number // 25, number % 25)
    seen = q.write_rows(pool, places, values, torch.float32)
    assert all(torch.equal(got, wanted) for got, wanted in zip(pool.at(places).planes(), (data, scales), strict=True))
    assert torch.equal(q.read_rows(pool, places, torch.float32), q.decode_rows(packed, torch.float32))
    assert seen is not None
    assert torch.equal(seen, q.decode_rows(packed, torch.float32))
    assert not wide[..., data.shape[1] :].any()


@pytest.mark.parametrize("row_format", [f for f in RowFormat if f is not RowFormat.FLOAT])
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_so(row_format: RowFormat, broken: float, path: str) -> None:
    """The group that it is in reads as NaN, by either way; the other groups are as they were."""
    values = torch.randn(3, 64)
    sound = q.round_rows(values, row_format)
    values[1, 40] = broken
    pool = Rows(
        row_format,
        torch.zeros(1, 3, 64 // row_format.channels_per_byte, dtype=torch.uint8),
        torch.zeros(1, 3, 64 // row_format.channels_per_scale, dtype=torch.uint8),
    )
    places = Places(torch.zeros(3, dtype=torch.int64), torch.arange(3))
    seen = q.write_rows(pool, places, values, torch.float32)
    group = slice(32, 48) if row_format.channels_per_scale == 16 else slice(32, 64)
    assert seen is not None
    for got in (seen, q.read_rows(pool, places, torch.float32), q.round_rows(values, row_format)):
        assert got[1, group].isnan().all()
        assert torch.equal(got.isnan().sum(), torch.tensor(group.stop - group.start))
        assert torch.equal(got[got.isfinite()], sound[got.isfinite()])
    packed = q.encode_rows(values, row_format)
    assert all(torch.equal(got, wanted) for got, wanted in zip(pool.at(places).planes(), packed.planes(), strict=True))


def test_eager_rows_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a compiler the same calls go through torch."""
    values = torch.randn(5, 64)
    pools = [
        Rows(RowFormat.E4M3_POW2_32, torch.zeros(2, 4, 64, dtype=torch.uint8), torch.zeros(2, 4, 2, dtype=torch.uint8))
        for _ in range(2)
    ]
    places = Places(torch.tensor([0, 1, 0, 1, 1]), torch.tensor([3, 0, 1, 2, 3]))
    first = q.write_rows(pools[0], places, values, torch.float32)
    monkeypatch.setattr(native, "_functions", lambda: None)
    second = q.write_rows(pools[1], places, values, torch.float32)
    assert first is not None
    assert second is not None
    assert torch.equal(first, second)
    assert torch.equal(pools[0].data, pools[1].data)
    assert torch.equal(q.read_rows(pools[0], places, torch.float32), first)
