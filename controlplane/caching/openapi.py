"""What drf-spectacular cannot find out by itself about the management API; registered when the app is ready."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension, OpenApiSerializerExtension


class KeyScheme(OpenApiAuthenticationExtension):
    target_class = "controlplane.accounts.authentication.KeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "a key with the scope `management`"}


class FreeForm(OpenApiSerializerExtension):
    """Serializers that only say how a row becomes JSON have no fields to describe."""

    target_class = "rest_framework.serializers.BaseSerializer"
    match_subclasses = True

    @classmethod
    def _matches(cls, target: Any) -> bool:
        return bool(super()._matches(target)) and not hasattr(target, "fields")

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": True}
