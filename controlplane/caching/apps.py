from typing import Any

from django.apps import AppConfig


class CachingConfig(AppConfig):
    name = "controlplane.caching"

    def ready(self) -> None:
        from controlplane.accounts.signals import tenant_deleted
        from controlplane.caching import openapi  # noqa: F401 - registers itself

        tenant_deleted.connect(_end_warming, dispatch_uid="caching.end_warming")


def _end_warming(*, tenant: str, actor: Any, **_: Any) -> None:
    from controlplane.caching.warming import warm_cancel_tenant

    warm_cancel_tenant(actor=actor, tenant=tenant)
