"""The definition, one request and one row at a time: the oracle of the other implementations."""

from __future__ import annotations

import torch

from kernels.attention.cache import PagedCache
from kernels.attention.plan import AttentionPlan


def attend(queries: torch.Tensor, cache: PagedCache, plan: AttentionPlan) -> torch.Tensor:
    heads, channels = queries.shape[1:]
    group = heads // cache.kv_heads
    out = torch.empty(queries.shape)
    for span in plan.spans:
        keys, values = cache.gather(torch.tensor(span.slots), span.length)
        for row in range(span.count):
            visible = span.context + row + 1
            for head in range(heads):
                k, v = keys[head // group, :visible], values[head // group, :visible]
                weights = torch.softmax(k @ queries[span.start + row, head] / channels**0.5, 0)
                out[span.start + row, head] = weights @ v
    return out
