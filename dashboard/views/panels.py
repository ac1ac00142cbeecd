"""Dialogs: the content of one for htmx, the same on a page of its own without scripts."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from controlplane.accounts.limit_options import micro_of_usd
from controlplane.accounts.limits import Limits
from dashboard.access import wants_partial


def panel(
    request: HttpRequest, name: str, context: dict[str, Any], *, title: str = "Keys", status: int = 200
) -> HttpResponse:
    """A dialog's content for htmx, the same on a page of its own, with this title, without scripts."""
    partial = f"dashboard/partials/{name}.html"
    dialog = wants_partial(request)
    template = partial if dialog else "dashboard/panel.html"
    return render(
        request, template, {**context, "partial": partial, "dialog": dialog, "panel_title": title}, status=status
    )


def done(request: HttpRequest, to: str) -> HttpResponse:
    """The change was made: the page behind the dialog is loaded anew."""
    return HttpResponse(status=204, headers={"HX-Refresh": "true"}) if wants_partial(request) else redirect(to)


class LimitsForm(forms.Form):
    """Empty is no limit. The budget is typed in dollars."""

    requests_per_minute = forms.IntegerField(label="Requests per minute", min_value=1, required=False)
    tokens_per_minute = forms.IntegerField(label="Tokens per minute", min_value=1, required=False)
    concurrent_requests = forms.IntegerField(label="Requests at a time", min_value=1, required=False)
    budget_usd = forms.CharField(label="Budget per month, $", max_length=20, required=False)

    @staticmethod
    def initial_of(limits: Limits) -> dict[str, Any]:
        micro = limits.budget_micro_usd
        budget = "" if micro is None else f"{micro / 10**6:.6f}".rstrip("0").rstrip(".")
        return {**limits.as_dict(), "budget_usd": budget}

    def clean_budget_usd(self) -> int | None:
        text = self.cleaned_data["budget_usd"].strip()
        if not text:
            return None
        try:
            micro = micro_of_usd(text)
        except ValueError as error:
            raise ValidationError("Give dollars, with at most six decimals.") from error
        if micro < 0:
            raise ValidationError("A budget is not negative.")
        return micro

    def limits(self) -> Limits:
        values = self.cleaned_data
        return Limits(
            requests_per_minute=values["requests_per_minute"],
            tokens_per_minute=values["tokens_per_minute"],
            concurrent_requests=values["concurrent_requests"],
            budget_micro_usd=values["budget_usd"],
        )
