"""What a replay of a trace reports: the columns of its table and the keys of its JSON."""

from __future__ import annotations

import msgspec


class Figures(msgspec.Struct, kw_only=True):
    mode: str
    trace: str
    requests: int
    sessions: int
    overlapping_sessions: int
    block_tokens: int
    payload_bytes: int
    seed: int
    scale: int
    prompt_tokens: int
    pool_hit_tokens: int
    store_hit_tokens: int
    miss_tokens: int
    token_hit_rate: float
    ideal_token_hit_rate: float
    unique_blocks: int
    capacity_bytes: int | None
    bytes_written: int
    bytes_read: int
    extents_written: int
    evicted_blocks: int
    expired_blocks: int
    effective_prefill_tokens_per_s: float | None = None
    """Prompt tokens, hits included, over wall time. Only modes that compute know the speeds."""
    cold_prefill_tokens_per_s: float | None = None
    ttft_ms: dict[str, float] | None = None
    """Milliseconds from submission to the first token at `p50`, `p90` and `p99`."""
    recomputed_tokens: int | None = None
    """Hit tokens that ran again."""
    concurrent_sessions: int | None = None
    """Most sessions that had a request in the engines at once."""
    ceiling_prefill_tokens_per_s: float | None = None
    """Effective speed were every layer-row that must run as fast as a cold one, and nothing else to do."""
    share_of_ceiling: float | None = None
    speed_up: float | None = None
    """Effective over cold, measured; what the ceiling allows; and the measured share of it at full lengths."""
    ceiling_speed_up: float | None = None
    speed_up_at_full_length: float | None = None
    timing: dict[str, float]
    """Wall time: differs from run to run."""
