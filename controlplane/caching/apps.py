from django.apps import AppConfig


class CachingConfig(AppConfig):
    name = "controlplane.caching"
