"""Names of everything in Valkey and in `/metrics`. vLLM's names where the meaning is the same, `galley_` otherwise."""

from __future__ import annotations

from typing import Final

# --- Channels and Valkey ---
GROUP: Final = "telemetry"
MESSAGE_TYPE: Final = "telemetry.frame"
FRAMES_KEY: Final = "galley:frames:1s"
"""List, newest first, of frames without workers and gateways."""
LATEST_KEY: Final = "galley:frames:latest"
"""The newest frame, whole."""
METRICS_KEY: Final = "galley:metrics"

# --- Prometheus ---
REQUESTS_RUNNING: Final = "vllm:num_requests_running"
REQUESTS_WAITING: Final = "vllm:num_requests_waiting"
KV_CACHE_USAGE: Final = "vllm:kv_cache_usage_perc"
PREFIX_QUERIES: Final = "vllm:prefix_cache_queries"
PREFIX_HITS: Final = "vllm:prefix_cache_hits"
PROMPT_TOKENS: Final = "vllm:prompt_tokens"
GENERATION_TOKENS: Final = "vllm:generation_tokens"
PREEMPTIONS: Final = "vllm:num_preemptions"
REQUEST_SUCCESS: Final = "vllm:request_success"
TTFT: Final = "vllm:time_to_first_token_seconds"
INTER_OUTPUT: Final = "vllm:inter_token_latency_seconds"
END_TO_END: Final = "vllm:e2e_request_latency_seconds"
QUEUE_TIME: Final = "vllm:request_queue_time_seconds"
DECODE_TIME: Final = "vllm:request_decode_time_seconds"
PREFILL_TIME: Final = "vllm:request_prefill_time_seconds"

REQUEST_ERRORS: Final = "galley_request_errors"
GATEWAY_RUNNING: Final = "galley_gateway_requests_running"
GATEWAY_WAITING: Final = "galley_gateway_requests_waiting"
WORKER_UP: Final = "galley_worker_up"
WORKER_STEP_AGE: Final = "galley_worker_step_age_seconds"
WORKER_SNAPSHOT_AGE: Final = "galley_worker_snapshot_age_seconds"
WORKER_STEPS: Final = "galley_worker_steps"
WORKER_STEP_TIME: Final = "galley_worker_step_seconds"
WORKER_GAUGE: Final = "galley_worker_gauge"
WORKER_EVENTS: Final = "galley_worker_events"
COMPUTED_TOKENS: Final = "galley_computed_tokens"
PREFILL_ROWS_SAVED: Final = "galley_prefill_rows_saved"
BLOCKS_TOTAL: Final = "galley_blocks_total"
BLOCKS_CACHED: Final = "galley_blocks_cached"
TRANSFERS: Final = "galley_transfers_in_flight"
TRANSFERRED_BLOCKS: Final = "galley_transferred_blocks"
TRANSFER_SKIPPED_BLOCKS: Final = "galley_transfer_skipped_blocks"
TRANSFER_TIME: Final = "galley_transfer_seconds"
COST_PER_HOUR: Final = "galley_cost_usd_per_hour"
REVENUE_PER_HOUR: Final = "galley_revenue_usd_per_hour"
TELEMETRY_UP: Final = "galley_telemetry_up"
TELEMETRY_AGE: Final = "galley_telemetry_age_seconds"
TELEMETRY_GAUGE: Final = "galley_telemetry_gauge"
TELEMETRY_EVENTS: Final = "galley_telemetry_events"

SUCCESS_REASONS: Final = frozenset({"stop", "length", "tool_calls", "content_filter", "cancelled"})
"""Ways a request ends that are not our fault; every other is an error."""
