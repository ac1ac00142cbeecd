"""Block-major pool against one tensor per layer: what attention pays for it, and what moving blocks gains.

Geometry of SmolLM2-135M: 30 layers, 3 key/value heads of 64 channels, 16 tokens to a block, float32. Both sides
hold the same blocks at the same shuffled slots. `decode` and `prefill` are a whole step's attention over all
layers, `write` a step's rows, `export` copies blocks out as storing or sending one does.
"""

from __future__ import annotations

import torch

from benchmarks.harness import Benchmark, compare
from kernels.attention import AttentionPlan, PagedCache, Span, attend, write
from workers.engine.layout import CacheLayout
from workers.models.base import CacheSpec, PagedGroup, Plane

LAYERS, HEADS, KV_HEADS, CHANNELS, ROWS = 30, 9, 3, 64, 16
SLOTS = 512
COLUMNS = ("operation", "requests", "context", "block-major ms", "per-layer ms", "per-layer / block-major")


class BlockMajor:
    def __init__(self) -> None:
        shape = (KV_HEADS, CHANNELS)
        planes = (Plane("k", torch.float32, shape, rows_axis=2), Plane("v", torch.float32, shape, rows_axis=1))
        layout = CacheLayout(CacheSpec(1, ROWS, (PagedGroup("kv", tuple(range(LAYERS)), 1, planes),)))
        self.blocks = torch.zeros(SLOTS, layout.block_bytes, dtype=torch.uint8)
        self.blocks.view(torch.float32).normal_()
        views = layout.views(self.blocks)
        self.layers = [
            PagedCache(views.paged("kv", layer, "k"), views.paged("kv", layer, "v")) for layer in range(LAYERS)
        ]
        self.outside = torch.zeros(8, layout.block_bytes, dtype=torch.uint8)

    def export(self, slots: list[int]) -> None:
        for place, slot in enumerate(slots):
            self.outside[place].copy_(self.blocks[slot])


class PerLayer:
    def __init__(self) -> None:
        self.layers = [
            PagedCache(torch.randn(SLOTS, KV_HEADS, CHANNELS, ROWS), torch.randn(SLOTS, KV_HEADS, ROWS, CHANNELS))
            for _ in range(LAYERS)
        ]
        self.outside = torch.zeros(8, LAYERS, 2, KV_HEADS, ROWS * CHANNELS)

    def export(self, slots: list[int]) -> None:
        for place, slot in enumerate(slots):
            for layer, cache in enumerate(self.layers):
                self.outside[place, layer, 0].copy_(cache.keys[slot].flatten(1))
                self.outside[place, layer, 1].copy_(cache.values[slot].flatten(1))


def make_plan(requests: int, context: int, rows: int) -> AttentionPlan:
    blocks = -(-(context + rows) // ROWS)
    order = torch.randperm(SLOTS).tolist()
    spans = [
        Span(start=n * rows, count=rows, context=context, slots=order[n * blocks : (n + 1) * blocks])
        for n in range(requests)
    ]
    return AttentionPlan.build(spans, ROWS)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    bench, options = Benchmark.from_arguments("cache_layout", COLUMNS)
    sides = (BlockMajor(), PerLayer())

    def add(operation: str, requests: int, context: int, works: list) -> None:  # type: ignore[type-arg]
        result = compare(works[0], works[1], pairs=options.pairs)
        bench.add(
            **dict(
                zip(
                    COLUMNS,
                    (operation, requests, context, result.ours_s * 1e3, result.peer_s * 1e3, result),
                    strict=True,
                )
            )
        )

    for requests, context, rows in ((1, 500, 1), (8, 400, 1), (32, 200, 1), (1, 0, 512), (1, 1024, 512)):
        plan = make_plan(requests, context, rows)
        queries = torch.randn(requests * rows, HEADS, CHANNELS)

        def attend_all(
            side: BlockMajor | PerLayer, queries: torch.Tensor = queries, plan: AttentionPlan = plan
        ) -> None:
            for layer in side.layers:
                attend(queries, layer, plan)

        name = "decode" if rows == 1 else f"prefill {rows}"
        add(name, requests, context, [lambda s=side: attend_all(s) for side in sides])

    for requests, rows in ((1, 1), (32, 1), (1, 512)):
        plan = make_plan(requests, 0, rows)
        keys, values = torch.randn(2, requests * rows, KV_HEADS, CHANNELS)

        def write_all(
            side: BlockMajor | PerLayer,
            keys: torch.Tensor = keys,
            values: torch.Tensor = values,
            plan: AttentionPlan = plan,
        ) -> None:
            for layer in side.layers:
                write(keys, values, layer, plan)

        add(f"write {rows}", requests, 0, [lambda s=side: write_all(s) for side in sides])

    slots = torch.randperm(SLOTS)[:8].tolist()
    add("export 8 blocks", 1, 0, [lambda s=side: s.export(slots) for side in sides])
    bench.finish()


if __name__ == "__main__":
    main()
