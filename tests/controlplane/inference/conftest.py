"""A tiny model with a real tokenizer, stub workers, and a gateway core that is connected to them."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from controlplane.inference.connection import Connection
from controlplane.inference.conversation import ChatModel, load_chat_model
from controlplane.inference.limits import GatewayLimits
from controlplane.inference.requests import Generation, Work
from controlplane.inference.router import Router
from tests.controlplane.inference.stub_worker import REVISION, StubCluster, StubWorker
from workers.manifest import ModelManifest, read_manifest, write_manifest
from workers.protocol import CacheScope, Role, Sampling

if TYPE_CHECKING:
    from tests.controlplane.inference.live import LiveGateway

CORPUS = ["The kitchen opens at noon.", "Hello world, 12345! Ünïcode 🎉 日本語", "stop END of the text, stop"] * 4


def train_tokenizer() -> Tokenizer:
    """Byte-level BPE of some 400 entries with ChatML's control tokens: 0 end of text, 1 im_start, 2 im_end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    control = [AddedToken(text, special=True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=control,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def write_tiny_model(folder: Path, **changes: Any) -> ModelManifest:
    folder.mkdir(parents=True)
    tokenizer = train_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    fields = {
        "name": "tiny-model",
        "family": "llama",
        "display_name": "Tiny",
        "source": "test",
        "licence": "test",
        "weights_fingerprint": "w",
        "tokenizer_fingerprint": "t",
        "parameters": 1,
        "max_context": 4096,
        "block_tokens": 16,
        "vocab_size": tokenizer.get_vocab_size(),
        "bos_token_id": 1,
        "eos_token_ids": (2, 0),
        "chat_format": "chatml",
        "special_tokens": {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2},
    }
    manifest = ModelManifest(**{**fields, **changes})
    write_manifest(folder, manifest)
    return manifest


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-model"
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> ChatModel:
    return load_chat_model(tiny_folder, read_manifest(tiny_folder))


@pytest.fixture
def limits() -> GatewayLimits:
    return GatewayLimits(
        keepalive_s=0.2,
        deadline_s=20.0,
        silence_s=3.0,
        stall_route_s=5.0,
        stall_fail_s=30.0,
        backoff_first_s=0.02,
        backoff_last_s=0.1,
    )


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """Short enough for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="gw-") as folder:
        yield Path(folder)


@dataclass
class Core:
    """The gateway between HTTP and the workers, without either PostgreSQL or Valkey."""

    cluster: StubCluster
    limits: GatewayLimits
    connections: dict[str, Connection] = field(default_factory=dict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    router: Router = field(init=False)

    def __post_init__(self) -> None:
        self.router = Router(self.connections.values)

    async def add(self, role: Role, *, name: str | None = None) -> StubWorker:
        worker = await self.cluster.add(role, name=name)
        connection = Connection(worker.lease, gateway="test", limits=self.limits)
        self.connections[worker.address.worker] = connection
        self.tasks.append(asyncio.create_task(connection.run()))
        await eventually(lambda: connection.usable)
        return worker

    async def pair(self) -> tuple[StubWorker, StubWorker]:
        return await self.add(Role.PREFILL), await self.add(Role.DECODE)

    def work(self, **changes: Any) -> Work:
        fields: dict[str, Any] = {
            "request_id": "req_1",
            "deployment": self.cluster.deployment,
            "revision": REVISION,
            "tokens": [5, 6, 7, 8],
            "sampling": Sampling(max_tokens=64),
            "cache": CacheScope(salt=b"salt"),
            "deadline": time.monotonic() + self.limits.deadline_s,
        }
        return Work(**{**fields, **changes})

    def generation(self, *, keep_restartable: bool = False, **changes: Any) -> tuple[Generation, asyncio.Event]:
        wake = asyncio.Event()
        work = self.work(**changes)
        generation = Generation(
            work, router=self.router, limits=self.limits, wake=wake, keep_restartable=keep_restartable
        )
        return generation, wake

    async def stop(self) -> None:
        for connection in self.connections.values():
            connection.close()
        await self.cluster.stop()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def eventually(condition: Callable[[], bool], *, within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - conditions of many kinds
            await asyncio.sleep(0.005)


@pytest.fixture
async def core(socket_folder: Path, limits: GatewayLimits) -> AsyncIterator[Core]:
    made = Core(StubCluster(socket_folder), limits)
    with contextlib.suppress(asyncio.CancelledError):
        yield made
    await made.stop()


@pytest.fixture(scope="module")
def live(
    services: dict[str, str],
    django_db_setup: None,
    django_db_blocker: Any,
    tiny_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveGateway]:
    """A gateway of its own for each module of tests, with `tiny-model` behind stub workers."""
    import shutil

    from django.db import connection
    from django.test import Client

    from controlplane.accounts.models import User
    from controlplane.accounts.permissions import SYSTEM
    from controlplane.accounts.roles import Role as AccountRole
    from controlplane.accounts.roles import Scope
    from controlplane.accounts.services import key_create, membership_grant, tenant_create, user_create
    from controlplane.config import home
    from controlplane.fleet.models import Deployment
    from controlplane.fleet.services import deployment_create
    from tests.controlplane.inference.live import LiveGateway, StubThread, forget_usage
    from workers.spec import EngineSettings

    store = home().models / "tiny-model"
    shutil.copytree(tiny_folder, store, dirs_exist_ok=True)
    with django_db_blocker.unblock(), tempfile.TemporaryDirectory(prefix="gw-") as folder:
        tenant = tenant_create(actor=SYSTEM, slug="live", name="Live")
        key, raw = key_create(actor=SYSTEM, tenant=tenant, name="live", scopes=[Scope.INFERENCE])
        other, listing = key_create(actor=SYSTEM, tenant=tenant, name="models only", scopes=[Scope.MODELS])
        cookies = {}
        for role in (AccountRole.OPERATOR, AccountRole.VIEWER):
            user, _ = user_create(actor=SYSTEM, username=f"live-{role}")
            membership_grant(actor=SYSTEM, user=user, role=role, tenant=tenant)
            browser = Client()
            browser.force_login(user)
            cookies[role.value] = browser.cookies["sessionid"].value
        deployment = deployment_create(
            actor=SYSTEM,
            name="tiny",
            model="tiny-model",
            prefill_replicas=1,
            decode_replicas=1,
            engine=EngineSettings(),
            aliases=["small"],
        )
        assert deployment.revision is not None
        stubs = StubThread(Path(folder), revision=deployment.revision.hash, valkey_url=services["REDIS_URL"])
        for role in (Role.PREFILL, Role.DECODE):
            stubs.add(role)
        database = str(connection.settings_dict["NAME"])
        log = tmp_path_factory.mktemp("gateway") / "log"
        gateway = LiveGateway(key=raw, models_key=listing, sessions=cookies, stubs=stubs, database=database, log=log)
        try:
            gateway.wait_ready()
            yield gateway
        finally:
            gateway.stop()
            stubs.stop()
            forget_usage()
            Deployment.objects.filter(name="tiny").delete()  # no agent will ever say that its workers are gone
            key.delete()
            other.delete()
            User.objects.filter(username__startswith="live-").delete()
            tenant.delete()
            shutil.rmtree(store)
