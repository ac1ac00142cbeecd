from __future__ import annotations

import time
from collections import Counter

import pytest
from asgiref.sync import async_to_sync
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from controlplane.accounts import keycache
from controlplane.accounts import services as accounts
from controlplane.accounts.permissions import SYSTEM, Scope
from controlplane.telemetry import names
from controlplane.telemetry.aggregator import Aggregator
from controlplane.telemetry.delivery import ValkeyDelivery
from controlplane.telemetry.metrics import MetricsState, decode, encode, metrics_state
from controlplane.telemetry.prometheus import exposition
from tests.controlplane.accounts import factories as people
from tests.controlplane.telemetry.factories import gateway, histogram, worker
from workers import snapshots
from workers.protocol import Role

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def state(*, at: float | None = None) -> MetricsState:
    aggregator = Aggregator()
    for snapshot in (
        worker(
            "p-0",
            role=Role.PREFILL,
            hit=90,
            miss=10,
            output=1,
            queue_s=histogram(0.01),
            gauges={"queue.commands": 3},
            rows_saved=[0, 0, 7],
            store_hit_tokens=60,
            recomputed_tokens=8,
            short_tokens=4,
            store_troubles={"disk_full": "no space left"},
        ),
        worker("d-0", role=Role.DECODE, output=49, blocks_used=25, events={"stale_blocks": 2}),
        gateway(requests={"stop": 4, "peer_lost": 1}, ttft_s=histogram(0.2, 0.3), decode_s=histogram(1.0)),
    ):
        aggregator.receive(snapshots.encode(snapshot), 100.0)
    frame, _ = aggregator.frame(seq=1, at=time.time() if at is None else at, now=100.5, seconds=1.0, loop_age_s=0.1)
    return decode(encode(metrics_state(aggregator, frame, now=100.5, gauges={"queue.frames": 0.0})))


def samples(text: bytes) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def of(name: str, role: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, (("model_name", "m"), ("rank", "0"), ("role", role), ("worker", f"{role[0]}-0"))


def test_names_and_values() -> None:
    found = samples(exposition(state()))
    assert found[of("vllm:prefix_cache_queries_total", "prefill")] == 100
    assert found[of("vllm:prefix_cache_hits_total", "prefill")] == 90
    assert found[of("galley_store_hit_tokens_total", "prefill")] == 60
    assert found[of("galley_recomputed_tokens_total", "prefill")] == 8
    assert found[of("galley_short_prompt_tokens_total", "prefill")] == 4
    trouble, whose = of("galley_store_trouble", "prefill")
    assert found[trouble, tuple(sorted([*whose, ("trouble", "disk_full")]))] == 1
    assert found[of("vllm:generation_tokens_total", "decode")] == 49
    assert found[of("vllm:kv_cache_usage_perc", "decode")] == 0.25
    assert found[of("vllm:request_queue_time_seconds_count", "prefill")] == 1
    assert found[("vllm:request_success_total", (("finished_reason", "stop"),))] == 4
    saved, layer = of("galley_prefill_rows_saved_total", "prefill")
    assert found[saved, tuple(sorted([*layer, ("layer", "2")]))] == 7
    assert not any(name == saved and ("layer", "0") in labels for name, labels in found)
    assert found[("galley_request_errors_total", (("code", "peer_lost"),))] == 1
    assert found[("vllm:time_to_first_token_seconds_bucket", (("le", "0.25"),))] == 1
    assert found[("vllm:time_to_first_token_seconds_bucket", (("le", "+Inf"),))] == 2
    assert found[("vllm:time_to_first_token_seconds_sum", ())] == pytest.approx(0.5)
    assert found[("vllm:request_decode_time_seconds_count", ())] == 1
    assert found[("galley_telemetry_up", ())] == 1


@pytest.mark.parametrize(
    "name",
    [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:request_success_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "vllm:request_queue_time_seconds_bucket",
        "vllm:request_prefill_time_seconds_bucket",
        "vllm:request_decode_time_seconds_bucket",
    ],
)
def test_every_name_that_dashboards_for_vllm_use(name: str) -> None:
    assert name in {sample for sample, _ in samples(exposition(state()))}


def test_an_old_word_is_not_taken_for_a_fresh_one() -> None:
    found = samples(exposition(state(at=time.time() - 60)))
    assert found[("galley_telemetry_up", ())] == 0
    assert found[of("galley_worker_up", "decode")] == 0


def test_without_the_telemetry_process_its_absence_is_told() -> None:
    found = samples(exposition(None))
    assert found[("galley_telemetry_up", ())] == 0
    assert ("galley_key_cache_heard", ()) in found
    assert any(name.startswith("process_") for name, _ in found)


@pytest.mark.integration
@pytest.mark.django_db
def test_the_page(valkey_url: str, settings: object) -> None:
    client = Client()
    assert samples(client.get("/metrics").content)[("galley_telemetry_up", ())] == 0

    async def deliver() -> None:
        valkey = ValkeyDelivery(valkey_url, Counter())
        word = state()
        await valkey.deliver(word.frame, word)
        await valkey.close()

    async_to_sync(deliver)()
    response = client.get("/metrics")
    assert response["content-type"].startswith("text/plain")
    assert samples(response.content)[of("galley_worker_up", "prefill")] == 1


@pytest.mark.integration
@pytest.mark.django_db(transaction=True)
def test_the_page_may_ask_for_a_key(valkey_url: str, settings: object) -> None:
    settings.METRICS_KEY_REQUIRED = True  # type: ignore[attr-defined]
    tenant = people.tenant()
    _, inference = accounts.key_create(actor=SYSTEM, tenant=tenant, name="x", scopes=[Scope.INFERENCE])
    _, management = accounts.key_create(actor=SYSTEM, tenant=tenant, name="x", scopes=[Scope.MANAGEMENT])
    client = Client()
    try:
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers={"authorization": f"Bearer {inference}"}).status_code == 403
        assert client.get("/metrics", headers={"authorization": f"Bearer {management}"}).status_code == 200
    finally:
        keycache.key_cache().stop()
        keycache.key_cache.cache_clear()


def test_names_are_unique() -> None:
    values = [value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)]
    assert len(values) == len(set(values))
