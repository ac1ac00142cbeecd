from __future__ import annotations

import math

import pytest

from workers.protocol import Address, CacheScope, Decode, Endpoint, Prefill, RequestId, Sampling
from workers.serving.validation import fault, sampling_fault

NAN = math.nan


@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=0.0, top_p=0.01, min_p=1.0, top_k=7, logprobs=0), Sampling(logprobs=20)],
)
def test_what_has_a_meaning_passes(sampling: Sampling) -> None:
    assert sampling_fault(sampling) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", NAN), ("temperature", -0.1), ("temperature", math.inf), ("top_p", NAN), ("top_p", 0.0),
        ("top_p", 1.1), ("min_p", NAN), ("min_p", -0.1), ("min_p", 1.1), ("top_k", -1), ("max_tokens", 0),
        ("logprobs", -1), ("logprobs", 2**20),
        ("presence_penalty", NAN), ("frequency_penalty", 1e9), ("logit_bias", {1: NAN}), ("grammar", "x" * 10**6),
    ],
)  # fmt: skip
def test_what_has_none_is_named(name: str, value: object) -> None:
    message = sampling_fault(Sampling(**{name: value}))  # type: ignore[arg-type]
    assert message is not None
    assert name in message


@pytest.mark.parametrize("deadline_s", [NAN, -1.0, math.inf])
def test_a_deadline_has_to_be_a_number(deadline_s: float) -> None:
    common = {"request_id": RequestId("a"), "epoch": 1, "tokens": b"", "sampling": Sampling(), "deadline_s": deadline_s}
    scope, prefill = CacheScope(salt=b"s"), Address(worker="p", epoch=1)
    for frame in (
        Prefill(cache=scope, **common),  # type: ignore[arg-type]
        Decode(cache=scope, prefill=prefill, prefill_endpoint=Endpoint("unix:/p"), **common),  # type: ignore[arg-type]
    ):
        assert (fault(frame) is not None) == math.isnan(deadline_s)
