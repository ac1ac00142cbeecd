"""Hyper-connections against a direct reading of V4.1 specification, section 4."""

import torch

from kernels import hyper_connections


def random_mix(rows: int = 5, streams: int = 4, channels: int = 16) -> tuple[torch.Tensor, ...]:
    mixes = 2 * streams + streams**2
    residual = torch.randn(rows, streams, channels)
    return residual, torch.randn(mixes, streams * channels), torch.randn(3), torch.randn(mixes)


def mix(residual: torch.Tensor, fn: torch.Tensor, scale: torch.Tensor, base: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return hyper_connections.mix(residual, fn, scale, base, rms_eps=1e-20, hc_eps=1e-6, iterations=20)


def test_mix_row_by_row(seeded: int) -> None:
    torch.manual_seed(seeded)
    residual, fn, scale, base = random_mix()
    pre, post, matrix = mix(residual, fn, scale, base)
    flat = residual[2].flatten()
    m = fn @ flat / flat.square().mean().sqrt()
    torch.testing.assert_close(pre[2], torch.sigmoid(m[:4] * scale[0] + base[:4]) + 1e-6)
    torch.testing.assert_close(post[2], 2 * torch.sigmoid(m[4:8] * scale[1] + base[4:8]))
    wanted = torch.softmax((m[8:] * scale[2] + base[8:]).view(4, 4), dim=1) + 1e-6
    wanted = wanted / (wanted.sum(0) + 1e-6)
    for _ in range(19):
        wanted = wanted / (wanted.sum(1, keepdim=True) + 1e-6)
        wanted = wanted / (wanted.sum(0) + 1e-6)
    torch.testing.assert_close(matrix[2], wanted)


def test_matrix_is_doubly_stochastic(seeded: int) -> None:
    torch.manual_seed(seeded)
    matrix = mix(*random_mix())[2]
    torch.testing.assert_close(matrix.sum(1), torch.ones(5, 4), atol=1e-4, rtol=0)
    torch.testing.assert_close(matrix.sum(2), torch.ones(5, 4), atol=5e-2, rtol=0)


def test_expand_reads_source_then_destination() -> None:
    residual = torch.tensor([[[1.0], [10.0]]])
    matrix = torch.tensor([[[0.0, 1.0], [2.0, 0.0]]])
    out = hyper_connections.expand(residual, torch.tensor([[100.0]]), torch.tensor([[1.0, 3.0]]), matrix)
    assert out.flatten().tolist() == [100 + 2 * 10, 300 + 1 * 1]
    assert hyper_connections.collapse(residual, torch.tensor([[2.0, 0.5]])).tolist() == [[7.0]]


def test_zeros_and_no_rows() -> None:
    _, fn, scale, base = random_mix()
    assert all(part.isfinite().all() for part in mix(torch.zeros(2, 4, 16), fn, scale, base))
    assert mix(torch.empty(0, 4, 16), fn, scale, base)[2].shape == (0, 4, 4)
