"""The streams around one sublayer: manifold hyper-connections with delayed pre (V4.1 specification, section 4).

```
m    = fn . flatten(R) * rsqrt(mean(flatten(R)^2) + rms_eps)
pre  = sigmoid(m[0:n] * scale[0] + base[0:n]) + hc_eps
post = 2 sigmoid(m[n:2n] * scale[1] + base[n:2n])
M    = Sinkhorn(softmax(m[2n:] * scale[2] + base[2n:]) + hc_eps)
```
The sublayer sees `sum_k pre'[k] R[k]` with the pre of the *previous* sublayer and leaves
`R[k] = post[k] y + sum_j M[j,k] R[j]`; its own pre is for the next one. The first sublayer takes stream 0.
"""

from dataclasses import dataclass

import torch

from kernels import hyper_connections
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.norm import widen
from workers.models.deepseek_v41.weights import WeightShelf


@dataclass(frozen=True, slots=True)
class Mix:
    """pre [T, n], post [T, n], matrix [T, n, n] of T rows."""

    pre: torch.Tensor
    post: torch.Tensor
    matrix: torch.Tensor


class HyperConnection:
    """The connection of one sublayer, `hc_attn` or `hc_ffn`."""

    def __init__(self, config: DeepseekV41Config, shelf: WeightShelf, name: str) -> None:
        self.config = config
        self.fn = shelf.vector(f"{name}_fn")
        self.scale = shelf.vector(f"{name}_scale")
        self.base = shelf.vector(f"{name}_base")

    def mix(self, residual: torch.Tensor) -> Mix:
        c = self.config
        return Mix(
            *hyper_connections.mix(
                residual,
                self.fn,
                self.scale,
                self.base,
                rms_eps=c.rms_norm_eps,
                hc_eps=c.hc_eps,
                iterations=c.hc_sinkhorn_iters,
            )
        )


def open_streams(rows: torch.Tensor, streams: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy rows [T, D] into the streams and pick stream 0: (R [T, n, D], pre [T, n])."""
    residual = rows[:, None, :].expand(-1, streams, -1).contiguous()
    pre = widen(rows).new_zeros((len(rows), streams))
    pre[:, 0] = 1
    return residual, pre
