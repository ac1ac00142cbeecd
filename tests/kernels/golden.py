"""Digests of what each kernel gives for fixed input, by kind of machine, in `golden_outputs.json`.

`GALLEY_KERNELS=native python -m tests.kernels.golden` (and `eager`) records this machine's, after a change that was
meant: then `kernels.NUMERICS_REVISION` was raised with it, so that cached blocks of before are not used any more.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import torch

from kernels import NUMERICS_REVISION, native
from kernels import attention as a
from kernels import hyper_connections as hc
from kernels import linear as li
from kernels import moe as m
from kernels import quantization as q
from kernels import sparse_attention as sa
from kernels.native import build
from kernels.rope import rotary_angles

FILE = Path(__file__).with_name("golden_outputs.json")


def machine() -> str:
    """What decides about rounding beside the sources: the compiler and the vectors, or torch and the processor."""
    if native.library() is not None:
        return f"{native.arithmetic()}, {build.compiler_version()}"
    processor = hashlib.sha256(build.processor().encode()).hexdigest()[:12]
    return f"{native.arithmetic()}, torch {torch.__version__}, {platform.machine()} {processor}"


def digests() -> dict[str, str]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # torch's own products may be cut up differently for more
    try:
        with torch.inference_mode():
            return {
                "attention": _digest(*_attention()),
                "hyper_connections": _digest(*_hyper_connections()),
                "linear": _digest(*_linear()),
                "moe": _digest(*_moe()),
                "rows": _digest(*_rows()),
                "sparse_attention": _digest(*_sparse_attention()),
            }
    finally:
        torch.set_num_threads(threads)


def recorded() -> dict[str, Any]:
    """`revision`, and `machines`: digests by machine."""
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def _values(*shape: int, salt: int = 0) -> torch.Tensor:
    """Between -1 and 1, the same on every machine, and no sum of them exact."""
    count = torch.Size(shape).numel()
    return (((torch.arange(count) + salt) * 7919 + 101) % 1009).float().div_(504.5).sub_(1).reshape(shape)


def _digest(*tensors: torch.Tensor) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _linear() -> list[torch.Tensor]:
    x, norm, gate_up = _values(5, 96), _values(96, salt=3), _values(5, 192, salt=5)
    out = []
    for weight_format in li.FORMATS:
        weight = li.LinearWeight.prepare(_values(70, 96, salt=7), weight_format, batch_invariant=True)
        out += [li.linear(x, weight), li.norm_linear(x, norm, 1e-6, weight)]
        out.append(li.gated_linear_add_(_values(5, 70, salt=9), gate_up, weight))
    return out


def _attention() -> list[torch.Tensor]:
    heads, kv_heads, channels, rows = 4, 2, 32, 16
    spans = [a.Span(0, 1, 40, [2, 0, 5]), a.Span(1, 6, 0, [1]), a.Span(7, 3, 20, [4, 3])]
    pool = _values(6, 2, kv_heads, rows * channels)
    cache = a.PagedCache(pool[:, 0].unflatten(2, (channels, rows)), pool[:, 1].unflatten(2, (rows, channels)))
    plan = a.AttentionPlan.build(spans, rows, invariant=True)
    qkv = _values(10, heads + 2 * kv_heads, channels, salt=2)
    angles = rotary_angles(torch.arange(10), 0.1 ** _values(channels // 2).abs())
    a.rotate_and_write_(qkv, angles, cache, plan)
    return [qkv[:, :heads], pool, a.attend(qkv[:, :heads], cache, plan)]


def _moe() -> list[torch.Tensor]:
    x, experts = _values(5, 48), torch.tensor([[0, 2], [2, 1], [1, 0], [0, 1], [2, 0]])
    weights, stacks = _values(5, 2, salt=1).abs(), (_values(3, 32, 48), _values(3, 32, 48, salt=4), _values(3, 48, 32))
    packed = [m.pack(*stacks, weight_format) for weight_format in li.FORMATS]
    out = [m.mix_packed(x, experts, weights, p, limit=2.0) for p in packed if p is not None]
    w1, w3, w2 = (q.Weight.of(w) for w in stacks)
    return [*out, m.mix_experts(x, experts, weights, w1, w3, w2, limit=2.0, by_row=True)]


def _rows() -> list[torch.Tensor]:
    return [q.round_rows(_values(9, 64), f) for f in q.RowFormat if f is not q.RowFormat.FLOAT]


def _sparse_attention() -> list[torch.Tensor]:
    queries, pool, sink = _values(5, 3, 32), _values(20, 32, salt=1), _values(3, salt=2)
    source = sa.Source(pool, torch.arange(60).reshape(5, 12) * 7 % 20)
    bias = torch.zeros(5, 12).masked_fill(_values(5, 12) > 0.6, -torch.inf)
    scores = sa.index_scores(queries, _values(5, 3, salt=8), pool, torch.tensor([20, 3, 0, 9, 17]), key_tile=8)
    return [sa.sparse_attention(queries, [source], bias, sink, scale=0.2), scores]


def _hyper_connections() -> list[torch.Tensor]:
    residual, norm = _values(7, 4, 72), _values(72, salt=6)
    pre, post, matrix = hc.mix(
        residual,
        _values(24, 288, salt=1) / 9,
        _values(3),
        _values(24, salt=2),
        rms_eps=1e-20,
        hc_eps=1e-6,
        iterations=20,
    )
    into = hc.collapse_norm(residual, pre, norm, 1e-20)
    return [pre, post, matrix, hc.collapse(residual, pre), into, hc.expand(residual, into, post, matrix)]


def record() -> None:
    known = recorded() if FILE.exists() else {"revision": 0}
    machines = known["machines"] if known["revision"] == NUMERICS_REVISION else {}
    machines[machine()] = digests()
    FILE.write_text(json.dumps({"revision": NUMERICS_REVISION, "machines": machines}, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    record()
