from django.apps import AppConfig


class WorkersConfig(AppConfig):
    """Installed for its management commands (those that need torch live here); it has no models."""

    name = "workers"
