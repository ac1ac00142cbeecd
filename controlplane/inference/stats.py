"""What this gateway process counts: the client's latencies, tokens by class, how requests ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from workers.snapshots import GatewaySnapshot, Histogram


@dataclass(slots=True)
class GatewayStats:
    """Counters since the process's start. TTFT and TBT end when a token is handed to the connection to the client."""

    running: int = 0
    waiting: int = 0
    hit_tokens: int = 0
    miss_tokens: int = 0
    output_tokens: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    ttft_s: Histogram = field(default_factory=Histogram)
    tbt_s: Histogram = field(default_factory=Histogram)
    e2e_s: Histogram = field(default_factory=Histogram)
    decode_s: Histogram = field(default_factory=Histogram)

    def ended(self, how: str) -> None:
        self.requests[how] = self.requests.get(how, 0) + 1

    def tokens_sent(self, count: int, gap_s: float) -> None:
        """`count` tokens went out together, `gap_s` after those before them: each counts an equal part of the gap."""
        for _ in range(count):
            self.tbt_s.observe(gap_s / count)

    def snapshot(self, *, gateway: str, started: int, seq: int) -> GatewaySnapshot:
        return GatewaySnapshot(
            gateway=gateway,
            started=started,
            seq=seq,
            running=self.running,
            waiting=self.waiting,
            hit_tokens=self.hit_tokens,
            miss_tokens=self.miss_tokens,
            output_tokens=self.output_tokens,
            requests=dict(self.requests),
            ttft_s=self.ttft_s,
            tbt_s=self.tbt_s,
            e2e_s=self.e2e_s,
            decode_s=self.decode_s,
        )
