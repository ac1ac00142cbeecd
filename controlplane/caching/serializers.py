"""Shapes of requests and answers of the caching API, for checking and for its OpenAPI description."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from controlplane.caching.models import WarmState
from controlplane.caching.prompts import MAX_FILE_BYTES
from controlplane.caching.purging import KINDS


class Reason(serializers.CharField):
    """Goes into the history and the audit log."""

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=500, help_text="why; for the history and the audit log", **options)


class PolicyField(serializers.DictField):
    """`classes`, `fallback`, `total_bytes`, `low_watermark`, `rules`, `pins`; unknown keys are refused."""

    def __init__(self, **options: Any) -> None:
        super().__init__(help_text=self.__doc__, **options)


class Draft(serializers.Serializer[Any]):
    policy = PolicyField()


class Save(serializers.Serializer[Any]):
    policy = PolicyField()
    expected_version = serializers.IntegerField(min_value=0, help_text="the version that the change is based on")
    reason = Reason()


class Rollback(serializers.Serializer[Any]):
    version = serializers.IntegerField(min_value=1)
    expected_version = serializers.IntegerField(min_value=0)
    reason = Reason()


class ChangeRow(serializers.Serializer[Any]):
    field = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)


class Version(serializers.Serializer[Any]):
    version = serializers.IntegerField()
    policy = PolicyField()
    created_at = serializers.DateTimeField()
    created_by = serializers.CharField()
    reason = serializers.CharField()
    restores = serializers.IntegerField(allow_null=True)
    changes = ChangeRow(many=True, required=False)


class NewPin(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100)
    tip = serializers.RegexField(r"^[0-9a-f]{64}$", default="", help_text="hash of the prefix's last block, hex")
    model = serializers.CharField(default="", max_length=200)
    tenant = serializers.CharField(default="default", max_length=63)
    messages = serializers.ListField(child=serializers.DictField(), default=list, max_length=1000)
    reason = Reason()

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if bool(attrs["tip"]) == bool(attrs["messages"]):
            raise serializers.ValidationError("give either `tip`, or `model` and `messages`")
        return attrs


class Purge(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(choices=KINDS)
    name = serializers.CharField(max_length=200)
    reason = Reason()


class Warm(serializers.Serializer[Any]):
    model = serializers.CharField(max_length=200)
    tenant = serializers.CharField(max_length=63, default="default")
    retention_class = serializers.CharField(max_length=64)
    prompts = serializers.CharField(
        max_length=MAX_FILE_BYTES, trim_whitespace=False, help_text="one prompt a line: text or JSON"
    )
    pin = serializers.CharField(max_length=100, default="", allow_blank=True)
    reason = serializers.CharField(max_length=500, default="", allow_blank=True)


class Job(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    state = serializers.ChoiceField(choices=WarmState.choices)
    note = serializers.CharField()
    model = serializers.CharField()
    tenant = serializers.CharField()
    pin = serializers.CharField()
    total = serializers.IntegerField()
    done = serializers.IntegerField()
    failed = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField()
    hit_tokens = serializers.IntegerField()
    created_at = serializers.DateTimeField()
    created_by = serializers.CharField()
    finished_at = serializers.DateTimeField(allow_null=True)
