"""The price book: prices with their validity, peak windows and holidays."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from controlplane.accounts.limit_options import micro_of_usd
from controlplane.accounts.permissions import Action
from controlplane.metering import selectors, services
from controlplane.metering.models import Holiday, PriceBook
from controlplane.metering.services import Rates
from dashboard.access import permission_required, principal_of
from dashboard.views.panels import done, panel

PAGE = "dashboard:prices"
RATES = (
    ("hit", "Cache hit, $ per million"), ("peak_hit", "at peak"),
    ("miss", "Cache miss, $ per million"), ("peak_miss", "at peak"),
    ("output", "Output, $ per million"), ("peak_output", "at peak"),
)  # fmt: skip


class PriceForm(forms.Form):
    """Dollars per million tokens."""

    model = forms.CharField(label="Model (empty: every model without its own)", max_length=200, required=False)
    valid_from = forms.DateTimeField(
        label="Valid from, UTC", widget=forms.DateTimeInput(attrs={"type": "datetime-local"})
    )

    def __init__(self, data: Any = None) -> None:
        super().__init__(data)
        for name, label in RATES:
            self.fields[name] = forms.CharField(label=label, max_length=20)

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        for name, _ in RATES:
            try:
                values[name] = micro_of_usd(values.get(name, ""))
                if values[name] < 0:
                    self.add_error(name, "A price is not negative.")
            except ValueError:
                self.add_error(name, "Give dollars, with at most six decimals.")
        return values


class HolidayForm(forms.Form):
    day = forms.DateField(label="Day, in UTC", widget=forms.DateInput(attrs={"type": "date"}))
    name = forms.CharField(label="Name", max_length=100)


def _book() -> PriceBook:
    found = selectors.default_book()
    if found is None:
        raise Http404("no default price book")
    return found


@require_safe
@never_cache
@permission_required(Action.PRICES_MANAGE)
def show(request: HttpRequest) -> HttpResponse:
    book = _book()
    today = timezone.now().date()
    context = {
        "book": book,
        "entries": selectors.price_entries(book),
        "windows": [(window, ", ".join(selectors.weekday_names(window))) for window in book.peak_windows.all()],
        "holidays": selectors.holidays(book, since=today.replace(month=1, day=1)),
        "today": today,
        "now": timezone.now(),
        "sees_prices": True,
    }
    return render(request, "dashboard/prices.html", context)


@require_http_methods(["GET", "POST"])
@never_cache
@permission_required(Action.PRICES_MANAGE)
def create(request: HttpRequest) -> HttpResponse:
    form = PriceForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        values = form.cleaned_data
        try:
            services.price_set(
                actor=principal_of(request),
                book=_book(),
                model_name=values["model"],
                rates=Rates(**{name: values[name] for name, _ in RATES}),
                valid_from=values["valid_from"],
            )
        except ValidationError as error:
            form.add_error(None, "; ".join(error.messages))
        else:
            return done(request, PAGE)
    return _form(request, form, "New prices", "Set prices", "The present prices end where these begin.")


@require_http_methods(["GET", "POST"])
@never_cache
@permission_required(Action.PRICES_MANAGE)
def holiday(request: HttpRequest) -> HttpResponse:
    form = HolidayForm(request.POST if request.method == "POST" else None)
    if form.is_bound and form.is_valid():
        try:
            services.holiday_add(actor=principal_of(request), book=_book(), **form.cleaned_data)
        except ValidationError as error:
            form.add_error(None, "; ".join(error.messages))
        else:
            return done(request, PAGE)
    return _form(request, form, "New holiday", "Add holiday", "A day without peak prices.")


@require_http_methods(["GET", "POST"])
@never_cache
@permission_required(Action.PRICES_MANAGE)
def holiday_remove(request: HttpRequest, holiday_id: int) -> HttpResponse:
    found = get_object_or_404(Holiday.objects.filter(book=_book()), pk=holiday_id)
    form = forms.Form(request.POST if request.method == "POST" else None)
    if request.method == "POST":
        try:
            services.holiday_remove(actor=principal_of(request), holiday=found)
        except ValidationError as error:
            form.add_error(None, "; ".join(error.messages))
        else:
            return done(request, PAGE)
    return _form(request, form, f"Remove {found.name}?", "Remove holiday", f"{found.day} has peak prices again.")


def _form(request: HttpRequest, form: forms.Form, title: str, submit: str, note: str) -> HttpResponse:
    context = {"form": form, "title": title, "submit": submit, "note": note, "back": PAGE}
    return panel(request, "simple_form", context, status=422 if form.is_bound else 200)
