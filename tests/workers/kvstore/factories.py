"""Chains, payloads and stores for the tests of `workers.kvstore`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec

from workers.identity import BlockHash, CacheIdentity, chain, root_hash
from workers.kvstore.clock import ManualClock
from workers.kvstore.extent import ExtentId
from workers.kvstore.policy import RetentionClass, RetentionPolicy
from workers.kvstore.policy_feed import publish
from workers.kvstore.settings import StoreSettings
from workers.kvstore.store import Store

BLOCK_TOKENS = 4
SALT = b"0123456789abcdef"
IDENTITY = CacheIdentity(
    weights_fingerprint="weights",
    tokenizer_fingerprint="tokenizer",
    weight_format="bf16",
    numerics="default",
    cache_dtype="bf16",
    layout_version=1,
    block_tokens=BLOCK_TOKENS,
)


def make_chain(
    blocks: int, *, start: int = 0, salt: bytes = SALT, identity: CacheIdentity = IDENTITY
) -> list[BlockHash]:
    """Hashes of `blocks` blocks of tokens start, start + 1, ..."""
    return chain(root_hash(identity, salt), range(start, start + blocks * BLOCK_TOKENS), BLOCK_TOKENS)


def fork(parent: Sequence[BlockHash], blocks: int, *, start: int) -> list[BlockHash]:
    """`parent` and `blocks` blocks of other tokens below it."""
    return [*parent, *chain(parent[-1], range(start, start + blocks * BLOCK_TOKENS), BLOCK_TOKENS)]


def payload(block: BlockHash, size: int = 512) -> bytes:
    """The bytes that stand for a block in these tests: they say whose they are."""
    return (block * (size // len(block) + 1))[:size]


def policy(
    version: int, *, agent_ttl_s: float = 3600.0, chat_ttl_s: float = 7200.0, **fields: object
) -> RetentionPolicy:
    classes = (RetentionClass(name="agent", ttl_s=agent_ttl_s), RetentionClass(name="chat", ttl_s=chat_ttl_s))
    return msgspec.structs.replace(RetentionPolicy(version=version, classes=classes), **fields)


class StoreFactory:
    def __init__(self, root: Path, url: str, namespace: str, clock: ManualClock, rng: random.Random) -> None:
        self.root, self.url, self.namespace, self.clock = root, url, namespace, clock
        self._rng = rng
        self._open: list[Store] = []

    def settings(self, **fields: object) -> StoreSettings:
        base = StoreSettings(
            root=str(self.root),
            index_url=self.url,
            namespace=self.namespace,
            background=False,
            reserve_bytes=0,
            read_deadline_s=10.0,
            index_timeout_s=10.0,
        )
        return msgspec.structs.replace(base, **fields)

    def open(self, **fields: object) -> Store:
        store = Store(self.settings(**fields), clock=self.clock, new_id=lambda: ExtentId(self._rng.randbytes(16)))
        self._open.append(store)
        return store

    def close(self) -> None:
        for store in self._open:
            store.close()


def put(
    store: Store,
    blocks: Sequence[BlockHash],
    *,
    start: int = 0,
    retention_class: str = "agent",
    salt: bytes = SALT,
    fingerprint: str = "",
    size: int = 512,
) -> None:
    """Write blocks[start:] and wait until they are there."""
    assert store.put_run(
        blocks,
        start,
        [payload(block, size) for block in blocks[start:]],
        salt=salt,
        fingerprint=fingerprint or IDENTITY.fingerprint(),
        retention_class=retention_class,
    )
    assert store.flush()


def served(store: Store, blocks: Sequence[BlockHash]) -> int:
    """How many blocks of the chain come back; fails on a wrong byte."""
    with store.get_run(blocks) as run:
        for data, block in zip(run.blocks, blocks, strict=False):
            assert bytes(data) == payload(block, len(data)), "wrong bytes were served"
        return len(run.blocks)


def use(store: Store, blocks: Sequence[BlockHash], retention_class: str = "agent", prompt_blocks: int = 0) -> int:
    future = store.use(blocks, retention_class, prompt_blocks=prompt_blocks)
    assert future is not None
    return future.result(10)


def set_policy(store: Store, new: RetentionPolicy) -> None:
    assert publish(store.index, new)
