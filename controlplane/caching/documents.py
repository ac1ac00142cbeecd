"""Policies as documents: rows to structs and back, and what differs between two of them. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from controlplane.caching.errors import PolicyRefused
from workers.kvstore.policy import AssignmentRule, RetentionPolicy


@dataclass(frozen=True, slots=True)
class Change:
    """One field that differs; None where it does not exist on that side."""

    field: str
    before: Any
    after: Any


def to_policy(body: dict[str, Any]) -> RetentionPolicy:
    """Raises PolicyRefused, naming the field, for what is no policy: unknown keys and wrong types are errors."""
    try:
        return msgspec.convert(body, RetentionPolicy)
    except msgspec.ValidationError as error:
        raise PolicyRefused(str(error)) from error


def to_body(policy: RetentionPolicy) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(policy)
    return body


def numbered(policy: RetentionPolicy, version: int) -> RetentionPolicy:
    return msgspec.structs.replace(policy, version=version)


def rule_text(rule: AssignmentRule) -> str:
    """`tools present -> agent`: how a rule reads in a log."""
    conditions = []
    if rule.key_id is not None:
        conditions.append(f"key {rule.key_id}")
    if rule.header is not None:
        conditions.append(f"header {rule.header[0]}: {rule.header[1]}")
    if rule.tools is not None:
        conditions.append("tools present" if rule.tools else "no tools")
    return f"{' and '.join(conditions) or 'always'} -> {rule.retention_class}"


def flat(policy: RetentionPolicy) -> dict[str, Any]:
    """Field to value, one level deep: `class chat life_s`, `pin faq`, `rules`."""
    fields: dict[str, Any] = {
        "fallback": policy.fallback,
        "total_bytes": policy.total_bytes,
        "low_watermark": policy.low_watermark,
        "rules": [rule_text(rule) for rule in policy.rules],
    }
    for item in policy.classes:
        fields |= {
            f"class {item.name} life_s": item.ttl_s,
            f"class {item.name} byte_budget": item.byte_budget,
            f"class {item.name} sidecars": item.sidecars.keep,
            f"class {item.name} sidecar_life_s": item.sidecars.ttl_s,
            f"class {item.name} priority": item.priority,
        }
    fields |= {f"pin {pin.name}": pin.tip for pin in policy.pins}
    return fields


def changes(before: RetentionPolicy, after: RetentionPolicy) -> list[Change]:
    """What differs, in the order of the document. A class that is new or gone shows each of its fields."""
    old, new = flat(before), flat(after)
    names = [*new, *(name for name in old if name not in new)]
    return [Change(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]
