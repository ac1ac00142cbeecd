"""Every bound and wait of a gateway process, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Seconds, bytes and counts. The defaults serve; tests make the waits short."""

    # clients
    body_bytes: int = 16 * 1024 * 1024
    body_wait_s: float = 60.0
    """From a request's headers to the end of its body."""
    concurrent_requests: int = 2048
    """API requests accepted and not finished in this process; beyond it 503 with `retry-after`."""
    choices: int = 8
    """Largest `n` of one request."""
    prompts: int = 64
    """Most prompts of one legacy completion; each is answered `n` times."""
    keepalive_s: float = 10.0
    """Silence after which a stream carries a comment (and a scheduled, non-streaming response a blank line)."""
    deadline_s: float = 600.0
    """From acceptance to the last token."""
    worker_wait_s: float = 30.0
    """How long a request waits for a worker that is known and not usable (restarting, loading) before it gets a 503."""
    retry_after_s: float = 1.0
    """What clients are told to wait when nothing can take their request."""
    thread_encode_chars: int = 20_000
    """Longer prompts are tokenized on a thread, so that they do not hold up other requests' tokens."""
    prepare_threads: int = 3
    """Threads that tokenize long prompts and compile grammars; one tenant holds all but one of them at most."""
    prepare_wait_s: float = 20.0
    """How long a request waits for its prompt and grammar, its turn included, before it gets a 503."""

    # workers
    connect_s: float = 2.0
    greeting_s: float = 5.0
    silence_s: float = 20.0
    """Without any frame for so long (a status comes every second) a connection is given up and made anew."""
    stall_route_s: float = 15.0
    """Age of the last engine step, silence included, beyond which nothing new is sent to a worker."""
    stall_fail_s: float = 30.0
    """Age of the last engine step beyond which its requests are failed."""
    backoff_first_s: float = 0.05
    backoff_last_s: float = 2.0
    write_buffer_bytes: int = 64 * 1024 * 1024
    """Unsent bytes of one connection beyond which it takes no further request."""
    inbox_events: int = 65_536
    """Undelivered events of one request beyond which it is cancelled (its client does not read)."""
    forget_s: float = 60.0
    """How long a worker without lease and without connection is remembered."""

    # background loops
    discovery_s: float = 1.0
    catalog_s: float = 1.0
    snapshot_s: float = 1.0
    retention_s: float = 0.5
    valkey_wait_s: float = 2.0

    # readiness
    ready_cache_s: float = 2.0
    ready_probe_s: float = 8.0
