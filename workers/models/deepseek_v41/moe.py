"""The feed-forward sublayer: a shared expert and routed experts (V4.1 specification, section 6).

```
s   = sqrt(softplus(gate.weight x / gate_temp))
sel = top-k of s + gate.bias            # image ids: gate.bias_vl instead; ties: lowest expert
w   = s[sel] / (sum + 1e-20) * routed_scaling_factor
y   = shared(x) + sum_e w_e expert_e(x)
ffn(x) = w2( silu(min(w1 x, limit)) * clip(w3 x, -limit, limit) )
```
"""

import torch

from kernels import moe
from workers.models.deepseek_v41.config import DeepseekV41Config
from workers.models.deepseek_v41.norm import widen
from workers.models.deepseek_v41.weights import WeightShelf


class MixtureOfExperts:
    def __init__(
        self, config: DeepseekV41Config, shelf: WeightShelf, name: str, experts: int, top_k: int, image_bias: bool
    ) -> None:
        self.config, self.experts, self.top_k = config, experts, top_k
        self.by_row = shelf.runtime is not None and shelf.runtime.batch_invariant
        self.gate = shelf.matrix(f"{name}.gate", exact=True)
        self.bias = shelf.vector(f"{name}.gate.bias")
        # Draft stages carry a bias_vl too, which text never uses (section 12, question 9).
        image = shelf.vector(f"{name}.gate.bias_vl")
        self.image_bias = image if image_bias else None
        stacks = [shelf.experts(f"{name}.experts.{w}") for w in ("w1", "w3", "w2")]
        self.packed = shelf.pack_experts(*stacks)
        # Packed, they are not kept twice.
        self.stacks = stacks if self.packed is None else []
        self.shared = [shelf.matrix(f"{name}.shared_experts.{w}") for w in ("w1", "w3", "w2")]

    def __call__(self, x: torch.Tensor, is_image: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """x [T, D] (after ffn_norm) -> ([T, D], experts int64 [T, k]). is_image bool [T]: image sentinels, if any."""
        c = self.config
        bias = self.bias
        if self.image_bias is not None and is_image is not None:
            bias = torch.where(is_image[:, None], self.image_bias, self.bias)
        experts, weights = moe.route(
            self.gate.linear(widen(x)), bias, top_k=self.top_k, scaling=c.routed_scaling_factor, temperature=c.gate_temp
        )
        if self.packed is not None:
            routed = moe.mix_packed(x, experts, weights, self.packed, limit=c.swiglu_limit)
        else:
            routed = moe.mix_experts(x, experts, weights, *self.stacks, limit=c.swiglu_limit, by_row=self.by_row)
        w1, w3, w2 = self.shared
        return w2.linear(moe.gated(w1.linear(x), w3.linear(x), limit=c.swiglu_limit)) + routed, experts
