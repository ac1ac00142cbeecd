"""Signing in: the form, and the throttle that makes guessing passwords slow."""

from __future__ import annotations

import hashlib
import logging
import time
from dataclasses import dataclass
from typing import Any, Final

import redis
from django import forms
from django.contrib.auth import authenticate
from django.core.cache import cache
from django.http import HttpRequest

from controlplane.accounts.models import User

log = logging.getLogger(__name__)

WINDOW_S: Final = 300
FAILURES_PER_ACCOUNT: Final = 5
"""Of one user name from one address, per window."""
FAILURES_PER_ADDRESS: Final = 30
"""Of all user names from one address, per window."""


@dataclass(frozen=True, slots=True)
class SignInThrottle:
    """Counts failures in fixed windows, atomically and for all gateway processes, in Valkey.

    While Valkey is away nothing is counted: the password hash stays slow, and an operator who must look at an outage
    gets in.
    """

    username: str
    address: str

    def _limits(self) -> tuple[tuple[str, int], ...]:
        window = int(time.time()) // WINDOW_S
        pair = hashlib.sha256(f"{self.address}\0{self.username.casefold()}".encode()).hexdigest()[:32]
        address = hashlib.sha256(self.address.encode()).hexdigest()[:32]
        return (
            (f"signin:{window}:pair:{pair}", FAILURES_PER_ACCOUNT),
            (f"signin:{window}:address:{address}", FAILURES_PER_ADDRESS),
        )

    def retry_after_s(self) -> int:
        """Seconds until the next try is looked at; 0: now."""
        try:
            exhausted = any(int(cache.get(name, 0)) >= limit for name, limit in self._limits())
        except redis.RedisError:
            log.warning("sign-in throttle: Valkey is away, not counting")
            return 0
        return WINDOW_S - int(time.time()) % WINDOW_S if exhausted else 0

    def failed(self) -> None:
        try:
            for name, _ in self._limits():
                cache.add(name, 0, timeout=WINDOW_S)
                cache.incr(name)
        except redis.RedisError:
            log.warning("sign-in throttle: Valkey is away, a failed sign-in was not counted")


class SignInForm(forms.Form):
    """User name and password; `user` is set once it is valid, `retry_after_s` where the throttle refused to look."""

    username = forms.CharField(label="User name", max_length=150)
    password = forms.CharField(label="Password", max_length=1024, strip=False, widget=forms.PasswordInput)

    def __init__(self, request: HttpRequest, data: Any = None) -> None:
        super().__init__(data)
        self.request = request
        self.user: User | None = None
        self.retry_after_s = 0

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not {"username", "password"} <= cleaned.keys():
            return cleaned
        address = self.request.META.get("REMOTE_ADDR", "")
        throttle = SignInThrottle(username=cleaned["username"], address=address)
        self.retry_after_s = throttle.retry_after_s()
        if self.retry_after_s:
            raise forms.ValidationError("too many attempts", code="throttled")
        user = authenticate(self.request, username=cleaned["username"], password=cleaned["password"])
        if not isinstance(user, User):
            throttle.failed()
            log.info("sign-in refused for a user name from %s", address)
            raise forms.ValidationError("wrong user name or password", code="refused")
        self.user = user
        return cleaned
