"""Sidecars in memory live as long as any class that used them says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from workers.engine.sidecar_memory import SidecarMemory
from workers.identity import BlockHash
from workers.kvstore.policy import RetentionClass, RetentionPolicy, SidecarRule
from workers.kvstore.store import Store

BLOCK = BlockHash(b"b" * 32)
CLASSES = (
    RetentionClass(name="long", ttl_s=3600.0),
    RetentionClass(name="short", ttl_s=0.0),
    RetentionClass(name="none", ttl_s=3600.0, sidecars=SidecarRule(keep="none")),
)


def memory(bound: int = 100) -> SidecarMemory:
    policy = RetentionPolicy(version=1, classes=CLASSES, fallback="long")
    return SidecarMemory(cast(Store, SimpleNamespace(policy=SimpleNamespace(current=policy))), bound)


def test_a_use_by_a_class_of_shorter_life_ends_no_other_classs() -> None:
    kept = memory()
    kept.put(BLOCK, b"rows", "long", created=0.0)
    kept.put(BLOCK, b"rows", "short", created=0.0)
    assert kept.get(BLOCK, "short") is not None
    assert kept.get(BLOCK, "long") is not None


def test_a_class_that_keeps_none_uses_what_others_keep() -> None:
    kept = memory()
    assert kept.put(BLOCK, b"rows", "none", created=0.0) is None
    assert kept.get(BLOCK, "none") is None
    kept.put(BLOCK, b"rows", "long", created=0.0)
    found = kept.get(BLOCK, "none")
    assert found is not None
    assert found.uses.keys() == {"long/sidecar"}


def test_what_nobody_claims_any_more_and_what_is_too_much_goes() -> None:
    kept = memory(bound=4)
    kept.put(BLOCK, b"rows", "short", created=0.0)
    assert kept.get(BLOCK, "long") is None
    kept.put(BLOCK, b"rows", "long", created=0.0)
    kept.put(BlockHash(b"c" * 32), b"rows", "long", created=0.0)
    assert kept.get(BLOCK, "long") is None
