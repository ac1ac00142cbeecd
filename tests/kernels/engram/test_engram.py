"""Engram hashing and gating (V4.1 specification, section 3)."""

import torch

from kernels import engram

MAP = torch.arange(50) * 3 % 50
TABLE = {
    "multipliers": torch.tensor([3, 5, 7]),
    "primes": torch.tensor([[11, 13], [17, 19]]),
    "offsets": torch.tensor([[0, 11], [24, 41]]),
    "image_token_id": 40,
    "pad_token_id": 2,
}


def rows(window: list[int]) -> list[int]:
    return engram.hash_rows(torch.tensor([window]), MAP, **TABLE)[0].tolist()  # type: ignore[arg-type]


def test_hash_by_hand() -> None:
    v = [int(MAP[t]) for t in (5, 6, 7)]
    two = v[0] * 3 ^ v[1] * 5
    three = two ^ v[2] * 7
    assert rows([5, 6, 7]) == [two % 11, two % 13 + 11, three % 17 + 24, three % 19 + 41]


def test_start_of_text_and_images_count_as_pad_and_stop_the_look_back() -> None:
    assert rows([5, -1, -1]) == rows([5, 2, 2])
    assert rows([5, 40, 7]) == rows([5, 2, 2])
    assert rows([40, 6, 7]) == rows([2, 2, 2])
    assert rows([5, 41, 7]) != rows([5, 2, 2])


def test_no_rows() -> None:
    assert engram.hash_rows(torch.empty((0, 3), dtype=torch.int64), MAP, **TABLE).shape == (0, 4)  # type: ignore[arg-type]


def test_injection_of_one_stream(seeded: int) -> None:
    torch.manual_seed(seeded)
    residual, key_value = torch.randn(3, 2, 8), torch.randn(3, 24)
    q, k = torch.randn(2, 8), torch.randn(2, 8)
    image = torch.tensor([False, True, False])
    out = engram.inject(residual, key_value, q, k, image, eps=1e-20)
    assert torch.equal(out[1], residual[1])
    stream, key, value = residual[2, 1], key_value[2, 8:16], key_value[2, 16:]
    s = (stream * q[1] * k[1] * key).sum() / stream.square().mean().sqrt() / key.square().mean().sqrt() / 8**0.5
    gate = torch.sigmoid(s.sign() * s.abs().sqrt())
    torch.testing.assert_close(out[2, 1], stream + gate * value)


def test_a_zero_score_opens_half_the_gate() -> None:
    out = engram.inject(
        torch.zeros(1, 1, 4), torch.ones(1, 8), torch.ones(1, 4), torch.ones(1, 4), torch.tensor([False]), eps=1e-20
    )
    assert torch.equal(out, torch.full((1, 1, 4), 0.5))
