"""Engram lookups and their injection in plain torch (V4.1 specification, section 3)."""

import torch


def widen(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def hash_rows(
    windows: torch.Tensor,
    token_map: torch.Tensor,
    multipliers: torch.Tensor,
    primes: torch.Tensor,
    offsets: torch.Tensor,
    image_token_id: int,
    pad_token_id: int,
) -> torch.Tensor:
    orders, heads = primes.shape
    stopped = ((windows < 0) | (windows == image_token_id)).to(torch.int8).cummax(dim=1).values.bool()
    ids = torch.where(stopped, pad_token_id, windows)
    products = token_map[ids] * multipliers
    accumulated = products[:, 0]
    columns = []
    for k in range(1, orders + 1):
        accumulated = accumulated ^ products[:, k]
        columns.append(accumulated[:, None] % primes[k - 1] + offsets[k - 1])
    return torch.cat(columns, dim=1) if columns else windows.new_empty((len(windows), heads))


def inject(
    residual: torch.Tensor,
    key_value: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    is_image: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    n, channels = residual.shape[1:]
    streams = widen(residual)
    both = key_value.to(streams.dtype).unflatten(-1, (n + 1, channels))
    key, value = both[:, :n], both[:, n:]
    weights = q_weight.to(streams.dtype) * k_weight.to(streams.dtype)
    dot = (streams * weights * key).sum(-1)
    dot = dot * torch.rsqrt(streams.square().mean(-1) + eps) * torch.rsqrt(key.square().mean(-1) + eps)
    dot = dot / channels**0.5
    gate = torch.sigmoid(dot.sign() * dot.abs().clamp(min=1e-6).sqrt())
    gate = gate.masked_fill(is_image[:, None], 0.0)
    return (streams + gate[..., None] * value).to(residual.dtype)
