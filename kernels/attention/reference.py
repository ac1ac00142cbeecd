"""The definition, one request and one row at a time: the oracle of the other implementations."""

from __future__ import annotations

import torch

from kernels.attention.plan import AttentionPlan


def attend(queries: torch.Tensor, cache: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
    heads, channels = queries.shape[1:]
    group = heads // cache.shape[2]
    out = torch.empty_like(queries)
    for span in plan.spans:
        blocks = cache[torch.tensor(span.slots)].float()  # [blocks, 2, kv_heads, rows, c]
        keys, values = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, : span.length]
        for row in range(span.count):
            visible = span.context + row + 1
            for head in range(heads):
                k, v = keys[head // group, :visible], values[head // group, :visible]
                weights = torch.softmax(k @ queries[span.start + row, head] / channels**0.5, 0)
                out[span.start + row, head] = weights @ v
    return out
