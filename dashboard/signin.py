"""The sign-in form. Checking, throttling and the audit event are the accounts' (`accounts.backends`)."""

from __future__ import annotations

import math
from typing import Any

from django import forms
from django.contrib.auth import authenticate
from django.http import HttpRequest

from controlplane.accounts.backends import client_address
from controlplane.accounts.models import User
from controlplane.accounts.throttle import login_throttle


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
        self.retry_after_s = math.ceil(login_throttle().wait_s(cleaned["username"], client_address(self.request)))
        if self.retry_after_s:
            raise forms.ValidationError("too many attempts", code="throttled")
        user = authenticate(self.request, username=cleaned["username"], password=cleaned["password"])
        if not isinstance(user, User):
            raise forms.ValidationError("wrong user name or password", code="refused")
        self.user = user
        return cleaned
