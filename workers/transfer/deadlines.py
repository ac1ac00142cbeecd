"""Every wait between gateway, prefill and decode worker, in seconds (decision 0005: what happens when one passes)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    connect_s: float = 5.0
    """Decode: dialling a prefill worker."""
    greeting_s: float = 5.0
    """Either side: the first frame after a connection stands."""
    early_subscribe_s: float = 30.0
    """Prefill: a `Subscribe` without its `Prefill`."""
    subscribe_s: float = 12.0
    """Prefill: a request that could start, without the decode worker's `Subscribe` (which may have to dial first)."""
    credit_s: float = 35.0
    """Prefill: the answer to `Reserve`, for which the decode worker asks its engine: longer than `engine_s`."""
    turn_s: float = 1.0
    """Prefill: a request that could start, and waits for either, lets others go first after this."""
    progress_s: float = 120.0
    """Decode: the next frame of a request that holds credit. Prefill may be busy with chunks of other prompts."""
    release_s: float = 30.0
    """Prefill: `Release`, after everything was announced."""
    abort_s: float = 10.0
    """Prefill: the answer to `Abort` while decode may be copying."""
    block_s: float = 10.0
    """TCP, either side: one block, from its request or the one before to its last byte."""
    block_batch_s: float = 60.0
    """TCP, decode: one batch of blocks, a second try included."""
    engine_s: float = 30.0
    """Either side: the engine thread's answer to a call (it waits for the step that runs)."""
    link_ping_s: float = 1.0
    link_silence_s: float = 10.0
    """Either side: a link on which nothing arrives is closed."""
    retry_credit_s: float = 0.1
    """What decode asks prefill to wait after the first `NoCredit`; twice as long after each further one."""
    retry_credit_most_s: float = 1.0
    sweep_s: float = 0.2
    """How often the deadlines above are looked at."""

    def __post_init__(self) -> None:
        if self.credit_s <= self.engine_s:
            raise ValueError(f"credit_s {self.credit_s} ends before the engine's answer, engine_s {self.engine_s}")

    def retry_credit_after(self, refusals: int) -> float:
        """Seconds to wait after the `refusals`-th `NoCredit` of a request."""
        return min(self.retry_credit_s * 2.0 ** min(refusals - 1, 30), self.retry_credit_most_s)
