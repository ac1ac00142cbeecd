from typing import Any

from django.apps import AppConfig


class MeteringConfig(AppConfig):
    name = "controlplane.metering"

    def ready(self) -> None:
        from controlplane.accounts.signals import budget_set

        budget_set.connect(_tell_budget, dispatch_uid="metering.tell_budget")


def _tell_budget(*, subject: str, **_: Any) -> None:
    from controlplane.accounts.invalidation import client
    from controlplane.metering.budgets import budget_told

    budget_told(client(), subject)
