"""Who may start a request now: a bound per process, then the limits and budgets of its key and tenant.

An admitted request is in the journal: it will be in the ledger, however it ends and whatever dies.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.accounts.permissions import Principal
from controlplane.inference.admission_metering import Demand, Metered, Metering
from controlplane.inference.errors import overloaded
from controlplane.inference.limits import GatewayLimits
from controlplane.metering.events import Counts
from controlplane.middleware import current_request_id


@dataclass(slots=True)
class Admitted:
    """A reservation. `settle` gives it back, once, with what was used."""

    admission: Admission
    metered: Metered | None
    open: bool = True

    def progress(self, counts: Counts) -> None:
        """What was committed and is about to be sent: it is billed if this process dies now."""
        if self.open and self.metered is not None:
            self.metered.progress(counts)

    def settle(self, counts: Counts, *, outcome: str) -> None:
        """`outcome` names how the request ended: a finish reason, an error code, `disconnected`."""
        if not self.open:
            return
        self.open = False
        self.admission.active -= 1
        if self.metered is not None:
            self.metered.end(counts, outcome)


class Admission:
    """`metering` None: nothing is limited or recorded (the core without its services)."""

    def __init__(self, limits: GatewayLimits, metering: Metering | None = None) -> None:
        self._limits = limits
        self._metering = metering
        self.active = 0

    def require_room(self) -> None:
        """Raises ApiError (503) where this process has enough to do: asked before anything is prepared, too."""
        if self.active >= self._limits.concurrent_requests:
            raise overloaded(
                "This gateway serves as many requests as it can; try again shortly.",
                retry_after_s=self._limits.retry_after_s,
            )

    async def admit(
        self, principal: Principal, *, prompt_tokens: int, max_tokens: int, model: str = "", deployment: str = ""
    ) -> Admitted:
        """`prompt_tokens` of all prompts together, `max_tokens` of all choices together; `model` names the prices.

        Raises ApiError: 503 where this process has enough to do or cannot record, 429 over a limit, 402 over a budget.
        """
        self.require_room()
        self.active += 1
        try:
            metered = None
            if self._metering is not None:
                demand = Demand(current_request_id(), prompt_tokens, max_tokens, model, deployment)
                metered = await self._metering.open(principal, demand)
        except BaseException:
            self.active -= 1
            raise
        return Admitted(self, metered)
