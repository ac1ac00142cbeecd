from __future__ import annotations

import math

import msgspec
import pytest

from tests.workers.kvstore.factories import policy
from workers.kvstore.policy import (
    DAY_S,
    DEFAULT_POLICY,
    PIN,
    AssignmentRule,
    Pin,
    PolicyError,
    RetentionClass,
    SidecarRule,
    claims_of_class,
    class_of,
    decode,
    encode,
    sidecar_claim,
)


def test_defaults_are_those_of_the_design() -> None:
    assert DEFAULT_POLICY.find("agent").ttl_s == 3 * DAY_S
    assert DEFAULT_POLICY.find("chat").ttl_s == 7 * DAY_S
    assert DEFAULT_POLICY.classify(key_id="k", headers={}, tools=True) == "agent"
    assert DEFAULT_POLICY.classify(key_id="k", headers={}, tools=False) == "chat"


def test_what_several_classes_use_lives_until_the_last_lets_go() -> None:
    held = policy(1, agent_ttl_s=10, chat_ttl_s=100)
    claims = {"agent": 0, "chat": 0}
    assert held.live(claims, 10_000_000)
    assert held.live(claims, 100_000_000)
    assert not held.live(claims, 100_000_001)
    assert not held.live({"agent": 0}, 10_000_001)
    assert not held.live({}, 0)


def test_pins_never_expire() -> None:
    assert policy(1).live({PIN: 0}, 10**18)


def test_a_claim_of_a_class_that_is_gone_follows_the_fallback() -> None:
    assert policy(1, chat_ttl_s=5).ttl_us("removed") == 5e6


@pytest.mark.parametrize(
    ("keep", "at_end", "inside"), [("none", -1.0, -1.0), ("unit_end", 60e6, -1.0), ("all", 60e6, 60e6)]
)
def test_sidecars_follow_the_rule_of_their_class(keep: str, at_end: float, inside: float) -> None:
    rule = msgspec.convert({"keep": keep, "ttl_s": 60.0}, SidecarRule)
    held = policy(1, classes=(RetentionClass(name="chat", ttl_s=3600, sidecars=rule),))
    assert held.ttl_us(sidecar_claim("chat", unit_end=True)) == at_end
    assert held.ttl_us(sidecar_claim("chat", unit_end=False)) == inside


def test_a_sidecar_never_outlives_its_class() -> None:
    rule = SidecarRule(keep="all", ttl_s=9e9)
    held = policy(1, classes=(RetentionClass(name="chat", ttl_s=3600, sidecars=rule),))
    assert held.ttl_us(sidecar_claim("chat", unit_end=True)) == 3600e6


def test_claims_name_their_class() -> None:
    assert {class_of(claim) for claim in claims_of_class("a-b")} == {"a-b"}


@pytest.mark.parametrize(
    ("rule", "hits"),
    [
        (AssignmentRule(retention_class="agent", key_id="k1"), True),
        (AssignmentRule(retention_class="agent", key_id="k2"), False),
        (AssignmentRule(retention_class="agent", header=("X-Class", "agent")), True),
        (AssignmentRule(retention_class="agent", header=("X-Class", "other")), False),
        (AssignmentRule(retention_class="agent", tools=True), False),
        (AssignmentRule(retention_class="agent", key_id="k1", tools=False), True),
    ],
)
def test_rules_need_every_condition(rule: AssignmentRule, hits: bool) -> None:
    held = policy(1, rules=(rule,))
    assert held.classify(key_id="k1", headers={"x-class": "agent"}, tools=False) == ("agent" if hits else "chat")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"version": 0}, "versions"),
        ({"classes": ()}, "classes"),
        ({"classes": (RetentionClass(name="chat", ttl_s=-1),)}, "life"),
        ({"classes": (RetentionClass(name="chat", ttl_s=math.nan),)}, "life"),
        ({"classes": (RetentionClass(name="chat", ttl_s=1e12),)}, "ten years"),
        ({"classes": (RetentionClass(name="a b", ttl_s=1),), "fallback": "a b"}, "names"),
        ({"classes": (RetentionClass(name="chat", ttl_s=1, byte_budget=-5),)}, "negative"),
        ({"classes": (RetentionClass(name="chat", ttl_s=1, byte_budget=2000),)}, "budget"),
        ({"classes": (RetentionClass(name="chat", ttl_s=1), RetentionClass(name="chat", ttl_s=2))}, "same name"),
        ({"fallback": "nobody"}, "fallback"),
        ({"total_bytes": 0}, "positive"),
        ({"total_bytes": 1001}, "more than the disk"),
        ({"low_watermark": 0.1}, "watermark"),
        ({"rules": (AssignmentRule(retention_class="nobody"),)}, "unknown class"),
        ({"pins": (Pin(name="p", tip="abc"),)}, "tip"),
    ],
)
def test_bad_policies_are_refused_with_the_reason(fields: dict[str, object], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        msgspec.structs.replace(policy(1), **fields).check(disk_bytes=1000)


def test_a_policy_survives_the_wire_and_unknown_fields_do_not() -> None:
    held = policy(7, pins=(Pin(name="p", tip="ab" * 32),), total_bytes=5)
    assert decode(encode(held)) == held
    with pytest.raises(PolicyError):
        decode(encode(held).replace(b'"version"', b'"edition"'))
