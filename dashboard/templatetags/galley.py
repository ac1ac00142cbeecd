"""Template tags of the pages: navigation, icons, theme, times."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django import template
from django.db.models import QuerySet
from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import localtime

from controlplane.accounts.models import Tenant
from controlplane.accounts.permissions import Action, Principal, can
from controlplane.accounts.selectors import tenants
from dashboard.access import principal_of

register = template.Library()

THEMES: Final = ("light", "dark")
TIMESTAMP: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(\+\d{2}:\d{2}|Z)")


@dataclass(frozen=True, slots=True)
class NavItem:
    label: str
    icon: str
    url: str
    current: bool


PAGES: Final = (
    ("overview", "Overview", "activity", Action.TELEMETRY_VIEW),
    ("workers", "Workers", "server", Action.FLEET_VIEW),
    ("cache", "Cache", "database", Action.TELEMETRY_VIEW),
    ("playground", "Playground", "message-square", Action.INFERENCE_USE),
    ("usage", "Usage", "bar-chart-2", Action.COSTS_VIEW),
    ("keys", "Keys", "key", Action.KEYS_VIEW),
    ("audit", "Audit", "file-text", Action.AUDIT_VIEW),
)


def _inside(path: str, url: str) -> bool:
    """Whether a page is that one, or one below it; everything is below the first."""
    return path == url or (url != "/" and path.startswith(f"{url}/"))


def _sees(principal: Principal, action: Action, everyone: QuerySet[Tenant]) -> bool:
    """Keys and usage are a tenant's: the page is there for who sees those of any of `everyone`."""
    if can(principal, action):
        return True
    return action in (Action.KEYS_VIEW, Action.COSTS_VIEW) and any(
        can(principal, action, tenant=tenant.slug) for tenant in everyone
    )


@register.simple_tag
def navigation(request: HttpRequest) -> list[NavItem]:
    """The pages that the viewer may open."""
    if not request.user.is_authenticated:
        return []
    principal = principal_of(request)
    everyone = tenants()  # read once, where a page asks
    return [
        NavItem(label, icon, reverse(f"dashboard:{name}"), _inside(request.path, reverse(f"dashboard:{name}")))
        for name, label, icon, action in PAGES
        if _sees(principal, action, everyone)
    ]


@register.simple_tag
def role_names(request: HttpRequest) -> str:
    """The viewer's roles, for the user menu."""
    grants = principal_of(request).roles
    return ", ".join(sorted({str(grant.role.label) for grant in grants})) or "No role"


@register.simple_tag
def theme(request: HttpRequest | None) -> str:
    """The chosen theme, or "" for the system's."""
    chosen = request.COOKIES.get("galley_theme", "") if request is not None else ""
    return chosen if chosen in THEMES else ""


@register.simple_tag
def icon(name: str) -> SafeString:
    return format_html(
        '<svg class="icon" aria-hidden="true" focusable="false"><use href="{}#{}"></use></svg>',
        static("dashboard/build/icons.svg"),
        name,
    )


@register.filter
def instant(value: datetime | None) -> SafeString | str:
    """A time in UTC, which the page's script rewrites into the reader's zone."""
    if value is None:
        return "Never"
    text = localtime(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return format_html('<time datetime="{}">{}</time>', value.isoformat(), text)


@register.filter
def moment(value: str) -> SafeString | str:
    """An audited value: a time like every other on the page where it is one, else the text itself."""
    if not TIMESTAMP.fullmatch(value):
        return value
    return instant(datetime.fromisoformat(value))


@register.filter
def unix(value: datetime | None) -> str:
    return "" if value is None else str(int(value.timestamp()))


@register.simple_tag(takes_context=True)
def current_user(context: dict[str, Any]) -> Any:
    """The signed-in user, or None: error pages may have no request."""
    request = context.get("request")
    user = getattr(request, "user", None)
    return user if user is not None and user.is_authenticated else None
