"""Prefill and decode as two real processes with the real SmolLM2: the text is that of one process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.workers.conftest import Process, Workers, a_pool, connect_pair
from tests.workers.protocol_client import Pair, assert_cancelled, prefill_frame
from tests.workers.smollm2 import NAME, chat
from workers.network.security import LinkSecurity, Plaintext
from workers.protocol import ErrorCode, Role
from workers.spec import EngineSettings, TransferChoice

pytestmark = pytest.mark.timeout(600)
SERVE = [sys.executable, "-m", "workers.serve"]
PATIENCE_S = 300.0
"""For machines that do other things as well."""


@dataclass
class Real:
    pool: Workers
    model: Path
    processes: dict[Role, Process]

    def start(self, role: Role) -> Process:
        self.processes[role] = self.begin(role, str(role), TransferChoice.AUTO)
        return self.processes[role]

    def begin(self, role: Role, name: str, transfer: TransferChoice) -> Process:
        settings = EngineSettings(pool_blocks=128, max_batch_tokens=64)  # several chunks for a long prompt
        spec = self.pool.spec(
            role, name=name, model=NAME, model_path=str(self.model), engine=settings, heartbeat_s=1.0,
            **self.pool.tcp("127.0.0.1", name, LinkSecurity(plaintext=Plaintext.LOOPBACK), transfer),
        )  # fmt: skip
        return self.pool.start(spec, program=SERVE)

    async def pair(self) -> Pair:
        return await connect_pair(self.processes[Role.PREFILL], self.processes[Role.DECODE])

    def encode(self, text: str) -> list[int]:
        ids: list[int] = Tokenizer.from_file(str(self.model / "tokenizer.json")).encode(text).ids
        return ids


@pytest.fixture(scope="module")
def real(smollm2_path: Path) -> Iterator[Real]:
    with a_pool() as pool:
        real = Real(pool, smollm2_path, {})
        for role in Role:
            real.start(role)
        yield real


async def alone(real: Real, name: str, prompt: list[int], count: int) -> list[int]:
    client = await real.processes[Role.BOTH].ready()
    client.send(prefill_frame(name, client.welcome, prompt, count, deadline_s=PATIENCE_S))
    heard = client.about(name)
    await client.until(lambda: heard.ended, PATIENCE_S)
    assert heard.failed is None
    await client.close()
    return [heard.tokens[index] for index in sorted(heard.tokens)]


async def test_the_pair_says_what_one_process_says(real: Real) -> None:
    prompts = {
        "short": real.encode(chat("Name three vegetables.")),
        "long": real.encode(chat("What opens at nine? " + "The kitchen opens at nine. " * 40)),
        "block": real.encode(chat("Say hello to the cook of this kitchen."))[:32],
    }
    pair = await real.pair()
    for name, prompt in prompts.items():
        pair.start(name, prompt, 12, deadline_s=PATIENCE_S)
    for name, prompt in prompts.items():
        assert await pair.finished(name, PATIENCE_S) == await alone(real, name, prompt, 12)
    first = pair.tokens("long")
    again = prompts["long"] + first + real.encode(" And then?")
    pair.start("again", again, 8, deadline_s=PATIENCE_S)
    assert await pair.finished("again", PATIENCE_S) == await alone(real, "again", again, 8)
    scheduled = pair.prefill.about("again").scheduled
    assert scheduled is not None
    assert scheduled.pool_hit_tokens >= len(prompts["long"]) // 16 * 16
    await pair.idle()


async def test_blocks_that_came_over_tcp_are_those_that_are_shared(real: Real) -> None:
    over_tcp = real.begin(Role.DECODE, "decode-tcp", TransferChoice.TCP)
    pair = await real.pair()
    other = Pair(pair.prefill, await over_tcp.ready(), pair.prefill_endpoint)
    prompt = real.encode(chat("What closes at ten? " + "The kitchen closes at ten. " * 40))
    pair.start("shared", prompt, 12, deadline_s=PATIENCE_S)
    other.start("tcp", prompt, 12, deadline_s=PATIENCE_S)
    assert await other.finished("tcp", PATIENCE_S) == await pair.finished("shared", PATIENCE_S)
    assert mapped(real.processes[Role.DECODE]) == 2
    assert mapped(over_tcp) == 1
    await other.idle()
    over_tcp.kill()


def mapped(process: Process) -> int:
    """Arenas that the process can read."""
    maps = Path(f"/proc/{process.popen.pid}/maps").read_text()
    return len({line.split()[4] for line in maps.splitlines() if "memfd:galley-arena" in line})


@pytest.mark.parametrize("phase", ["queued", "prefill", "transfer", "decode"])
async def test_cancel_in_every_phase(real: Real, phase: str) -> None:
    prompt = real.encode(chat(f"Tell me all about {phase}. " + "It is a long story. " * 30))
    pair = await real.pair()
    prefill, decode = pair.prefill.about("a"), pair.decode.about("a")
    reached = {
        "queued": (pair.prefill, lambda: True),
        "prefill": (pair.prefill, lambda: prefill.scheduled),
        "transfer": (pair.prefill, lambda: prefill.tokens),
        "decode": (pair.decode, lambda: decode.tokens),
    }
    pair.start("a", prompt, 60, deadline_s=PATIENCE_S)
    client, condition = reached[phase]
    await client.until(condition, PATIENCE_S)
    pair.cancel("a")
    await pair.idle()
    assert_cancelled(pair, "a")


async def test_a_killed_decode_worker_in_mid_stream(real: Real) -> None:
    prompt = real.encode(chat("Write about soup."))
    pair = await real.pair()
    pair.start("a", prompt, 100, deadline_s=PATIENCE_S)
    await pair.decode.until(lambda: pair.decode.about("a").tokens, PATIENCE_S)
    real.processes[Role.DECODE].kill()
    await pair.decode.until(lambda: pair.decode.closed)
    pair.start("b", prompt, 5, deadline_s=PATIENCE_S)
    await pair.prefill.until(lambda: pair.prefill.about("b").ended, PATIENCE_S)
    failed = pair.prefill.about("b").failed
    assert failed is not None
    assert (failed.code, failed.retryable) == (ErrorCode.PEER_LOST, True)
    real.processes[Role.DECODE].wait()
    real.start(Role.DECODE)
    pair = await real.pair()
    pair.start("c", prompt, 5, deadline_s=PATIENCE_S)
    assert await pair.finished("c", PATIENCE_S) == await alone(real, "c", prompt, 5)


async def test_a_killed_prefill_worker(real: Real) -> None:
    prompt = real.encode(chat("Tell me everything about bread. " + "Flour and water. " * 40))
    pair = await real.pair()
    pair.start("a", prompt, 5, deadline_s=PATIENCE_S)
    await pair.prefill.until(lambda: pair.prefill.about("a").scheduled, PATIENCE_S)
    real.processes[Role.PREFILL].kill()
    await pair.decode.until(lambda: pair.decode.about("a").ended)
    failed = pair.decode.about("a").failed
    assert failed is not None
    assert failed.retryable
    await pair.decode.status_where(lambda s: not (s.running or s.waiting or s.transfers or s.blocks_used))
    await asyncio.to_thread(real.processes[Role.PREFILL].wait)
