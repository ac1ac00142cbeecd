"""The audit log: what was changed, by whom, before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from controlplane.accounts.permissions import Action
from controlplane.audit import selectors
from controlplane.audit.models import AuditEvent
from dashboard.access import permission_required, wants_partial

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class Change:
    """One field of a change; None where it did not exist."""

    field: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    event: AuditEvent
    changes: list[Change]


class AuditFilter(forms.Form):
    action = forms.CharField(max_length=64, required=False)
    target = forms.CharField(max_length=200, required=False)
    actor = forms.CharField(max_length=200, required=False)
    before = forms.IntegerField(min_value=1, required=False)


def changes(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[Change]:
    """Fields that differ, by name."""
    old, new = before or {}, after or {}
    return [
        Change(field=name, before=_text(old, name), after=_text(new, name))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _text(values: dict[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is None or value in ("", [], {}):
        return None
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in sorted(value.items()))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


@require_safe
@never_cache
@permission_required(Action.AUDIT_VIEW)
def show(request: HttpRequest) -> HttpResponse:
    form = AuditFilter(request.GET)
    asked = form.cleaned_data if form.is_valid() else {}
    chosen = {name: asked[name].strip() for name in ("action", "target", "actor") if asked.get(name)}
    rows = list(selectors.events(**chosen, before_id=asked.get("before"))[: PAGE_SIZE + 1])
    shown = rows[:PAGE_SIZE]
    older = urlencode({**chosen, "before": shown[-1].pk}) if len(rows) > PAGE_SIZE else ""
    template = "dashboard/partials/audit_list.html" if wants_partial(request) else "dashboard/audit.html"
    context = {
        "entries": [Entry(event=event, changes=changes(event.before, event.after)) for event in shown],
        "chosen": chosen,
        "older": older,
        "newest": urlencode(chosen) if asked.get("before") else "",
        "paged": bool(asked.get("before")),
    }
    return render(request, template, context)
