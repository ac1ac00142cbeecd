"""Prefixes are a tenant's own: the same tenant hits, another one misses, and nothing a client sends changes that."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest
from openai import BadRequestError, OpenAI

from tests.running import MODEL, ROOT, System

pytestmark = pytest.mark.e2e

PROMPT = "Here is what the kitchen of this house keeps in its cupboards. " + "Plates, pans and letters. " * 40
SALTS = ({"salt": "ours"}, {"cache_salt": "ours"}, {"cache": {"salt": "b3Vycw=="}}, {"user": "ours"})


def manage(system: System, *arguments: str) -> str:
    command = [sys.executable, "manage.py", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=system.environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def client_of(system: System, tenant: str) -> OpenAI:
    manage(system, "tenants", "create", tenant)
    printed = manage(system, "keys", "create", f"key of {tenant}", "--tenant", tenant)
    key = next(word for word in printed.split() if word.startswith("gk-"))
    return OpenAI(base_url=f"{system.url}/v1", api_key=key, max_retries=0)


def cached(client: OpenAI, **extra: object) -> int:
    """Cached tokens of the prompt."""
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=1,
        temperature=0,
        extra_body=extra or None,
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    return answer.usage.prompt_tokens_details.cached_tokens or 0


def test_a_tenant_finds_its_own_prefixes_and_nobody_elses(system: System) -> None:
    one, other = client_of(system, "store-one"), client_of(system, "store-other")
    assert cached(one) == 0
    assert (known := cached(one)) > 100
    assert cached(other) == 0
    assert cached(other) == known
    for extra in SALTS:
        with contextlib.suppress(BadRequestError):  # refused by name: nothing was changed by it either
            assert cached(other, **extra) == known, f"{extra} led elsewhere"
