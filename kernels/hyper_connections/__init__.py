"""Manifold hyper-connections: n residual streams, mixed by a doubly stochastic matrix (V4.1 specification, section 4).

T rows, n streams, D channels. T may be 0. Statistics and mixes are float32 (float64 for float64 streams).
"""

import torch

from kernels.hyper_connections import reference

__all__ = ["collapse", "expand", "mix"]


def mix(
    residual: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    *,
    rms_eps: float,
    hc_eps: float,
    iterations: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """How the streams residual [T, n, D] enter and leave the coming sublayer: (pre [T,n], post [T,n], M [T,n,n]).

    fn [2n+n*n, n*D], scale [3], base [2n+n*n]. `m = fn . flatten(R) * rsqrt(mean(flatten(R)^2) + rms_eps)`;
    `pre = sigmoid(m*scale[0] + base) + hc_eps`; `post = 2 sigmoid(m*scale[1] + base)`; M is the softmax
    over its last axis, plus hc_eps, then `iterations` Sinkhorn rounds, columns last. `M[j, k]`: j source
    stream, k destination.
    """
    return reference.mix(residual, fn, scale, base, rms_eps, hc_eps, iterations)


def collapse(residual: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """`sum_k pre[k] R[k]`: what a sublayer sees. residual [T, n, D], pre [T, n] -> [T, D] in residual's
    dtype.
    """
    return reference.collapse(residual, pre)


def expand(residual: torch.Tensor, output: torch.Tensor, post: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """`R[k] <- post[k] y + sum_j M[j,k] R[j]`: the streams after a sublayer gave y = output [T, D]. -> [T,
    n, D].
    """
    return reference.expand(residual, output, post, matrix)
