from django.apps import AppConfig


class CachingConfig(AppConfig):
    name = "controlplane.caching"

    def ready(self) -> None:
        from controlplane.caching import openapi  # noqa: F401 - registers itself
