"""Manifold hyper-connections: n residual streams, mixed by a doubly stochastic matrix (V4.1 specification, section 4).

T rows, n streams, D channels. T may be 0. Statistics and mixes are float32 (float64 for float64 streams).

Four streams in float32 take the C++ kernels where there are any: a row's result then never depends on its company.
"""

import torch

from kernels.hyper_connections import native, reference

__all__ = ["collapse", "collapse_norm", "expand", "mix"]


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
    form = native if native.takes(residual, fn, scale, base) else reference
    return form.mix(residual, fn, scale, base, rms_eps, hc_eps, iterations)


def collapse(residual: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """`sum_k pre[k] R[k]`: what a sublayer sees. residual [T, n, D], pre [T, n] -> [T, D] in residual's
    dtype.
    """
    return _collapse(residual, pre, None, 0.0)


def collapse_norm(residual: torch.Tensor, pre: torch.Tensor, norm: torch.Tensor, eps: float) -> torch.Tensor:
    """`rms(sum_k pre[k] R[k]; norm)`: the same with the sublayer's norm [D], computed in float32 and rounded twice."""
    return _collapse(residual, pre, norm, eps)


def _collapse(residual: torch.Tensor, pre: torch.Tensor, norm: torch.Tensor | None, eps: float) -> torch.Tensor:
    inputs = (pre,) if norm is None else (pre, norm)
    return (native if native.takes(residual, *inputs) else reference).collapse(residual, pre, norm, eps)


def expand(residual: torch.Tensor, output: torch.Tensor, post: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """`R[k] <- post[k] y + sum_j M[j,k] R[j]`: the streams after a sublayer gave y = output [T, D]. -> [T,
    n, D].
    """
    form = native if native.takes(residual, output, post, matrix) else reference
    return form.expand(residual, output, post, matrix)
