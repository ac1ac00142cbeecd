"""The policy editor's fields: from a policy to rows of text, and from what was sent back to a policy.

Rows can be added and removed without a script: each button sends the form, and the server answers with the form as it
then is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from controlplane.caching.documents import numbered
from controlplane.caching.units import exact_duration, exact_size, parse_duration, parse_size
from workers.kvstore.policy import AssignmentRule, RetentionClass, RetentionPolicy, SidecarRule, encode

KEEP: Final = (
    ("unit_end", "Ends of units"),
    ("all", "All"),
    ("none", "None"),
)
TOOLS: Final = (("", "Either"), ("yes", "Present"), ("no", "Absent"))
_PART: Final = re.compile(r"(class|rule)-(\d{1,3})-([a-z]+)")
_TRUE: Final = {"yes": True, "no": False}


@dataclass(slots=True)
class Row:
    """Fields of one class or one rule as text, and what is wrong with each."""

    place: int
    values: dict[str, str]
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether the policy in force has this class: its name is then no field any more."""
        return "fresh" not in self.values

    def read(self, name: str, parse: Any, empty: Any = None) -> Any:
        """The parsed field; `empty` where nothing stands in it. A mistake is noted, and `empty` returned."""
        text = self.values.get(name, "").strip()
        if not text:
            return empty
        try:
            return parse(text)
        except ValueError as error:
            self.errors[name] = str(error)
            return empty


@dataclass(slots=True)
class PolicyForm:
    classes: list[Row]
    rules: list[Row]
    whole: Row
    """`total`, `watermark`, `fallback`."""
    version: int
    """The version that the draft is based on."""

    @classmethod
    def of(cls, policy: RetentionPolicy) -> PolicyForm:
        return cls(
            classes=[Row(place, _class_fields(item)) for place, item in enumerate(policy.classes)],
            rules=[Row(place, _rule_fields(rule)) for place, rule in enumerate(policy.rules)],
            whole=Row(
                0,
                {
                    "total": "" if policy.total_bytes is None else exact_size(policy.total_bytes),
                    "watermark": f"{(Decimal(repr(policy.low_watermark)) * 100).normalize():f}",
                    "fallback": policy.fallback,
                },
            ),
            version=policy.version,
        )

    @classmethod
    def sent(cls, data: Mapping[str, str]) -> PolicyForm:
        rows: dict[tuple[str, int], dict[str, str]] = {}
        for name in data:
            if match := _PART.fullmatch(name):
                rows.setdefault((match[1], int(match[2])), {})[match[3]] = data[name]
        version = data.get("version", "")
        return cls(
            classes=[Row(place, rows[key]) for place, key in enumerate(sorted(k for k in rows if k[0] == "class"))],
            rules=[Row(place, rows[key]) for place, key in enumerate(sorted(k for k in rows if k[0] == "rule"))],
            whole=Row(0, {name: data.get(name, "") for name in ("total", "watermark", "fallback")}),
            version=int(version) if version.isascii() and version.isdigit() else 0,
        )

    def edit(self, action: str) -> bool:
        """Do what a button of the form asks: `add-class`, `drop-rule-2`, `raise-rule-1`. False for anything else."""
        match action.split("-"):
            case ["add", "class"]:
                self.classes.append(Row(len(self.classes), {"keep": "unit_end", "priority": "0", "fresh": "yes"}))
            case ["add", "rule"]:
                self.rules.append(Row(len(self.rules), {"class": self.whole.values["fallback"]}))
            case ["drop", kind, place] if place.isdigit():
                rows = self.classes if kind == "class" else self.rules
                rows[:] = [row for row in rows if row.place != int(place)]
            case ["raise", "rule", place] if place.isdigit() and 0 < int(place) < len(self.rules):
                at = int(place)
                self.rules[at - 1], self.rules[at] = self.rules[at], self.rules[at - 1]
            case _:
                return False
        for rows in (self.classes, self.rules):
            for index, row in enumerate(rows):
                row.place = index
        return True

    def class_names(self) -> list[str]:
        return [name for row in self.classes if (name := row.values.get("name", "").strip())]

    @property
    def has_errors(self) -> bool:
        return any(row.errors for row in (*self.classes, *self.rules, self.whole))

    def policy(self, base: RetentionPolicy) -> RetentionPolicy | None:
        """The draft, with the pins of `base`; None where a field cannot be read (see its row's errors)."""
        classes = tuple(_class(row) for row in self.classes)
        rules = tuple(_rule(row) for row in self.rules)
        percent = self.whole.read("watermark", _number)
        if percent is None:
            self.whole.errors.setdefault("watermark", "a percentage, as 95")
        draft = msgspec.structs.replace(
            base,
            classes=classes,
            rules=rules,
            total_bytes=self.whole.read("total", parse_size),
            low_watermark=float((percent or Decimal(0)) / 100),
            fallback=self.whole.values["fallback"],
        )
        return None if self.has_errors else draft


def digest(policy: RetentionPolicy) -> str:
    """Names a draft, so that what is saved is what was looked at."""
    return hashlib.sha256(encode(numbered(policy, 1))).hexdigest()


def _class_fields(item: RetentionClass) -> dict[str, str]:
    return {
        "name": item.name,
        "life": exact_duration(item.ttl_s),
        "budget": "" if item.byte_budget is None else exact_size(item.byte_budget),
        "keep": item.sidecars.keep,
        "sidecars": "" if item.sidecars.ttl_s is None else exact_duration(item.sidecars.ttl_s),
        "priority": str(item.priority),
    }


def _rule_fields(rule: AssignmentRule) -> dict[str, str]:
    name, value = rule.header or ("", "")
    tools = {True: "yes", False: "no", None: ""}[rule.tools]
    return {"class": rule.retention_class, "key": rule.key_id or "", "header": name, "value": value, "tools": tools}


def _class(row: Row) -> RetentionClass:
    life = row.read("life", parse_duration)
    if life is None:
        row.errors.setdefault("life", "a time, as 72 h or 7 d")
    keep = row.values.get("keep", "")
    if keep not in dict(KEEP):
        row.errors["keep"] = "one of " + ", ".join(dict(KEEP))
    if not row.values.get("name", "").strip():
        row.errors["name"] = "a class needs a name"
    return RetentionClass(
        name=row.values.get("name", "").strip(),
        ttl_s=life or 0.0,
        byte_budget=row.read("budget", parse_size),
        sidecars=SidecarRule(keep=keep, ttl_s=row.read("sidecars", parse_duration)),  # type: ignore[arg-type]
        priority=row.read("priority", _whole, 0),
    )


def _rule(row: Row) -> AssignmentRule:
    header, value = row.values.get("header", "").strip(), row.values.get("value", "").strip()
    if value and not header:
        row.errors["header"] = "a value needs the header's name"
    return AssignmentRule(
        retention_class=row.values.get("class", ""),
        key_id=row.values.get("key", "").strip() or None,
        header=(header, value) if header else None,
        tools=_TRUE.get(row.values.get("tools", "")),
    )


def _number(text: str) -> Decimal:
    try:
        found = Decimal(text.removesuffix("%").strip())
    except InvalidOperation:
        raise ValueError(f"{text!r} is no number") from None
    if not -1000 < found < 1000:  # so is what is not finite
        raise ValueError(f"{text!r} is no percentage")
    return found


def _whole(text: str) -> int:
    try:
        found = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no whole number") from None
    if abs(found) > 2**31:
        raise ValueError(f"{text!r} is too large")
    return found
