"""Sparse attention by the C++ kernel (`native.cpp`): float32 queries and keys on the CPU, channels in whole vectors."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch

from kernels.native import FLOAT as F
from kernels.native import NUMBER as N
from kernels.native import POINTER as P
from kernels.native import declare
from kernels.sparse_attention.sources import Source

_WHOLE_VECTORS = 16


class _Source(ctypes.Structure):
    """`galley_source` of native.cpp."""

    _fields_ = (("rows", ctypes.c_void_p), ("index", ctypes.c_void_p), ("width", ctypes.c_int64))


@functools.cache
def _function() -> Any:
    found = declare(galley_sparse_attention=(P, N, N, N, P, N, P, P, F, P, N))
    return None if found is None else found[0]


def takes(queries: torch.Tensor, sources: Sequence[Source]) -> bool:
    """Whether these inputs can be served."""
    tensors = (queries, *(source.rows for source in sources))
    return (
        queries.shape[-1] % _WHOLE_VECTORS == 0
        and all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)
        and _function() is not None
    )


def sparse_attention(
    queries: torch.Tensor, sources: Sequence[Source], bias: torch.Tensor, sink: torch.Tensor, scale: float
) -> torch.Tensor:
    """Indexes are int64 inside their pools; hidden places are not read."""
    count, heads, channels = queries.shape
    queries, bias, sink = queries.contiguous(), bias.contiguous(), sink.float().contiguous()
    # Kept until the call is over: the structures hold addresses only.
    kept = [(s.rows.contiguous(), None if s.index is None else s.index.contiguous()) for s in sources]
    native = (_Source * len(kept))(
        *(
            _Source(rows.data_ptr(), None if index is None else index.data_ptr(), source.width)
            for source, (rows, index) in zip(sources, kept, strict=True)
        )
    )
    out = torch.empty_like(queries)
    _function()(
        queries.data_ptr(), count, heads, channels, native, len(kept), bias.data_ptr(), sink.data_ptr(), scale,
        out.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return out
