"""Small things the engine's tests are made of: a tiny real Llama, requests, and drivers that run engines to the end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from kernels.linear import LinearWeight
from workers.engine.api import EngineRequest, FailedEvent, Prefilled, ScheduledEvent, StepOutput
from workers.engine.engine import Engine
from workers.identity import CacheIdentity
from workers.models.base import CausalModel
from workers.models.llama.config import LlamaConfig
from workers.models.llama.loading import inverse_frequencies
from workers.models.llama.model import LlamaLayer, LlamaModel, LlamaWeights
from workers.protocol import Finish, RequestId, Sampling
from workers.spec import EngineSettings

_numbers = itertools.count()


def tiny_config(**changes: object) -> LlamaConfig:
    values: dict[str, object] = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 96,
        "layers": 2,
        "heads": 6,
        "kv_heads": 2,
        "head_dim": 8,
        "max_context": 512,
        "rms_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tied_embeddings": True,
        "block_tokens": 4,
    }
    return LlamaConfig(**(values | changes))  # type: ignore[arg-type]


def tiny_llama(*, batch_invariant: bool = False, seed: int = 0, **changes: object) -> LlamaModel:
    """Random weights large enough that logits differ clearly between tokens and prefixes."""
    c = tiny_config(**changes)
    generator = torch.Generator().manual_seed(seed)

    def weight(*shape: int) -> LinearWeight:
        values = torch.randn(*shape, generator=generator) * (2.0 / shape[1] ** 0.5)
        return LinearWeight.prepare(values, "fp32", batch_invariant=batch_invariant)

    layers = [
        LlamaLayer(
            attention_norm=torch.ones(c.hidden_size),
            qkv=weight((c.heads + 2 * c.kv_heads) * c.head_dim, c.hidden_size),
            output=weight(c.hidden_size, c.heads * c.head_dim),
            mlp_norm=torch.ones(c.hidden_size),
            gate_up=weight(2 * c.intermediate_size, c.hidden_size),
            down=weight(c.hidden_size, c.intermediate_size),
        )
        for _ in range(c.layers)
    ]
    head = weight(c.vocab_size, c.hidden_size)
    weights = LlamaWeights(
        embeddings=None,
        layers=layers,
        norm=torch.ones(c.hidden_size),
        head=head,
        inverse_frequencies=inverse_frequencies(c),
    )
    return LlamaModel(c, weights, weight_format="fp32", cache_dtype=torch.float32, batch_invariant=batch_invariant)


def identity(numerics: str = "default") -> CacheIdentity:
    return CacheIdentity(
        weights_fingerprint="w",
        tokenizer_fingerprint="t",
        weight_format="fp32",
        numerics=numerics,
        cache_dtype="float32",
        layout_version=1,
        block_tokens=4,
    )


def make_engine(
    model: CausalModel | None = None, *, clock: Callable[[], float] = time.monotonic, **settings: object
) -> Engine:
    values: dict[str, object] = {"pool_blocks": 128, "max_batch_tokens": 64, "max_running": 16, "max_queue": 64}
    engine_settings = EngineSettings(**(values | settings))  # type: ignore[arg-type]
    return Engine(model or tiny_llama(), engine_settings, identity(), clock=clock)


def make_request(
    tokens: Iterable[int],
    *,
    request_id: str = "",
    salt: bytes = b"tenant",
    priority: int = 0,
    arrived: float = 0.0,
    deadline: float = float("inf"),
    **sampling: object,
) -> EngineRequest:
    values: dict[str, object] = {"temperature": 0.0, "max_tokens": 8}
    return EngineRequest(
        request_id=RequestId(request_id or f"r{next(_numbers)}"),
        tokens=list(tokens),
        sampling=Sampling(**(values | sampling)),  # type: ignore[arg-type]
        salt=salt,
        priority=priority,
        arrived=arrived,
        deadline=deadline,
    )


def some_tokens(count: int, *, seed: int = 0, vocab: int = 97) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (count,), generator=generator).tolist()


@dataclass
class Outcome:
    """What a run gave, by request."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    finishes: dict[str, Finish] = field(default_factory=dict)
    scheduled: dict[str, ScheduledEvent] = field(default_factory=dict)
    prefilled: dict[str, Prefilled] = field(default_factory=dict)
    failed: dict[str, FailedEvent] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def add(self, output: StepOutput) -> None:
        for event in output.scheduled:
            assert event.request_id not in self.scheduled, "scheduled twice"
            self.scheduled[event.request_id] = event
        for delta in output.deltas:
            known = self.tokens.setdefault(delta.request_id, [])
            assert delta.index == len(known), "a gap in the output"
            known.extend(delta.tokens)
            if delta.finish is not None:
                self.finishes[delta.request_id] = delta.finish
        self.prefilled |= {event.request_id: event for event in output.prefilled}
        self.failed |= {event.request_id: event for event in output.failed}
        self.asked.extend(output.wants_credit)


def run_to_end(engine: Engine, outcome: Outcome | None = None, *, steps: int = 2000) -> Outcome:
    """Step until nothing is left to do, checking conservation after each step."""
    outcome = outcome or Outcome()
    for _ in range(steps):
        if not engine.has_work():
            return outcome
        outcome.add(engine.step())
        engine.check_conservation()
    raise AssertionError(f"not done after {steps} steps: {engine.stats()}")


def generate(engine: Engine, request: EngineRequest) -> list[int]:
    """The whole output of one request, alone in the engine."""
    engine.submit(request)
    return run_to_end(engine).tokens[request.request_id]


def transfer(prefill: Engine, decode: Engine, request: EngineRequest) -> Outcome:
    """One request through a prefill and a decode engine, blocks copied as the transfer does it."""
    outcome = Outcome()
    prefill.submit(request, hold=True)
    ready: dict[int, tuple[int, int]] = {}
    while not outcome.prefilled:
        output = prefill.step()
        outcome.add(output)
        for _ in output.wants_credit:
            reservation = decode.reserve(request)
            assert reservation is not None
            prefill.grant(request.request_id)
        for event in output.blocks:
            places = zip(event.slots, event.generations, strict=True)
            ready |= {event.first + offset: place for offset, place in enumerate(places)}
    for index in range(reservation.have_blocks, len(reservation.slots)):
        slot, generation = ready[index]
        decode.arena.block(reservation.slots[index])[:] = prefill.arena.block(slot)
        assert prefill.arena.generation(slot) == generation
    done = outcome.prefilled[request.request_id]
    decode.activate(request.request_id, done.first_token, done.sections)
    prefill.release(request.request_id)
    return run_to_end(decode, outcome)
