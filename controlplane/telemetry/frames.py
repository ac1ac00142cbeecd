"""What the telemetry process says once a second (JSON): to pages over Channels, to whoever missed one over a snapshot.

Units: tokens per second, milliseconds, US dollars per hour as decimal text. `at` is Unix time in UTC. Tokens are
counted by the workers, as they are scheduled and produced; requests and latencies by the gateways, as the client sees
them.
"""

from __future__ import annotations

import msgspec


class TokenRates(msgspec.Struct, kw_only=True):
    """Disjoint classes: hit + miss is the prompt."""

    hit: float = 0.0
    miss: float = 0.0
    output: float = 0.0
    store_hit: float = 0.0
    """The part of `hit` that came from the KV store; the rest was in a worker's pool."""
    recomputed: float = 0.0
    """The part of `hit` that ran again all the same."""


class TokenCounts(msgspec.Struct, kw_only=True):
    hit: int = 0
    miss: int = 0
    output: int = 0
    store_hit: int = 0
    recomputed: int = 0
    short: int = 0
    """The part of `miss` of prompts shorter than one block."""


class Percentiles(msgspec.Struct, kw_only=True):
    """Milliseconds; None where nothing happened in the window."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class WorkerLine(msgspec.Struct, kw_only=True):
    """One rank of one worker, from its last snapshot."""

    worker: str
    epoch: int
    rank: int
    role: str
    node: str
    deployment: str
    revision: str
    model: str
    state: str
    step_age_s: float
    """Seconds since the engine loop last came round, the age of the snapshot included."""
    running: int
    waiting: int
    waiting_tokens: int
    blocks_total: int
    blocks_used: int
    blocks_cached: int
    transfers: int
    tokens_per_s: float
    """Tokens it computes: prompt tokens that missed, and output."""
    trimmed: float = 0.0
    """Share, 0 to 1, of all prompt rows times layers so far that the trimmed tail of prompts saved."""
    observed_age_s: float
    stale: bool
    """No snapshot for longer than STALE_S: what stands here is old."""


class GatewayLine(msgspec.Struct, kw_only=True):
    gateway: str
    running: int
    waiting: int
    observed_age_s: float
    stale: bool = False


class Frame(msgspec.Struct, kw_only=True):
    """One period of `window_s` seconds that ends at `at`. Longer periods (history) have the same shape."""

    seq: int
    """Grows by one from frame to frame, also over a restart of the telemetry process; 0 in history."""
    at: float
    window_s: float = 1.0
    tokens: TokenCounts = msgspec.field(default_factory=TokenCounts)
    """Tokens learned of in the period: they sum up over frames without loss, rates do not."""
    tokens_per_s: TokenRates = msgspec.field(default_factory=TokenRates)
    hit_rate: float | None = None
    """hit / (hit + miss), by tokens, over the last WINDOW_S seconds (or the period, where that is longer)."""
    ttft_ms: Percentiles = msgspec.field(default_factory=Percentiles)
    """Over the last WINDOW_S seconds, like `tbt_ms`."""
    tbt_ms: Percentiles = msgspec.field(default_factory=Percentiles)
    running: float = 0
    """Requests that have received a token and are not finished (mean of the period)."""
    waiting: float = 0
    requests_per_s: float = 0.0
    """Requests that ended, however they did."""
    errors_per_s: float = 0.0
    cost_per_hour_usd: str = "0"
    revenue_per_hour_usd: str = "0"
    workers: list[WorkerLine] = []
    gateways: list[GatewayLine] = []
    loop_age_s: float = 0.0
    """How late the telemetry process's receiving loop is."""


WINDOW_S = 10
STALE_S = 3.0
FORGET_S = 60.0
"""A process that was silent for this long leaves the frames."""

encoder = msgspec.json.Encoder()
decoder: msgspec.json.Decoder[Frame] = msgspec.json.Decoder(Frame)
