"""Who may start a request now. Here: a bound per process. Limits and budgets per key and tenant join at `admit`."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.accounts.permissions import Principal
from controlplane.inference.errors import overloaded
from controlplane.inference.limits import GatewayLimits


@dataclass(slots=True)
class Admitted:
    """A reservation. `settle` gives it back, once, with what was used."""

    admission: Admission
    open: bool = True

    def settle(self, *, hit_tokens: int, miss_tokens: int, output_tokens: int) -> None:
        if self.open:
            self.open = False
            self.admission.active -= 1


class Admission:
    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self.active = 0

    async def admit(
        self, principal: Principal, *, prompt_tokens: int, max_tokens: int, model: str = "", deployment: str = ""
    ) -> Admitted:
        """`prompt_tokens` of all prompts together, `max_tokens` of all choices together; `model` names the prices.

        Raises ApiError (503) where this process has enough to do.
        """
        if self.active >= self._limits.concurrent_requests:
            raise overloaded(
                "This gateway serves as many requests as it can; try again shortly.",
                retry_after_s=self._limits.retry_after_s,
            )
        self.active += 1
        return Admitted(self)
