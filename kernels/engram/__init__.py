"""Engram: hashed n-grams of token ids pick rows of a large table, added to the residual streams through a gate.

V4.1 specification, section 3. T rows, n streams, D channels, N the longest n-gram. T may be 0.
"""

import torch

from kernels.engram import reference

__all__ = ["hash_rows", "inject"]


def hash_rows(
    windows: torch.Tensor,
    token_map: torch.Tensor,
    *,
    multipliers: torch.Tensor,
    primes: torch.Tensor,
    offsets: torch.Tensor,
    image_token_id: int,
    pad_token_id: int,
) -> torch.Tensor:
    """Table rows for each position, offsets included: int64 [T, (N-1)*heads], n-gram sizes outside, heads inside.

    windows int64 [T, N]: the token ids at p, p-1, ..., p-N+1, -1 before the text's start. token_map int64
    [vocabulary] gives compressed ids; multipliers int64 [N]; primes and offsets int64 [N-1, heads]. Going
    back from p, the first -1 or `image_token_id` and everything older count as `pad_token_id`. `a = v_0
    m_0; a ^= v_k m_k`, row = a mod prime + offset.
    """
    return reference.hash_rows(windows, token_map, multipliers, primes, offsets, image_token_id, pad_token_id)


def inject(
    residual: torch.Tensor,
    key_value: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    is_image: torch.Tensor,
    *,
    eps: float,
) -> torch.Tensor:
    """`R[k] += sigmoid(sign(s_k) sqrt(max(|s_k|, 1e-6))) v`, each stream on its own. residual [T, n, D] -> [T, n, D].

    key_value [T, (n+1)*D]: n keys, then the shared value v. q_weight, k_weight [n, D]. `s_k` is the dot
    product of the rms-normed stream and key, weighted, over sqrt(D). Rows where is_image [T] is true take
    nothing.
    """
    return reference.inject(residual, key_value, q_weight, k_weight, is_image, eps)
