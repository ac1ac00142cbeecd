"""How a request is refused that its key's or tenant's limits do not allow. Nothing secret is in the messages."""

from __future__ import annotations

from controlplane.inference.errors import ApiError, overloaded
from controlplane.inference.limits_subjects import Limited
from controlplane.metering import limit_scripts

UNKNOWN_RETRY_S = 2.0


def refused(code: int, at: Limited, *, retry_after_s: float) -> ApiError:
    """`code` is one of `limit_scripts`, not OK."""
    whose = "this API key" if at.subject.name.startswith("k:") else "this tenant"
    limits = at.limits
    match code:
        case limit_scripts.REQUESTS:
            return _rate(
                f"Rate limit reached for {whose}: {limits.requests_per_minute} requests per min.", retry_after_s
            )
        case limit_scripts.TOKENS:
            return _rate(f"Rate limit reached for {whose}: {limits.tokens_per_minute} tokens per min.", retry_after_s)
        case limit_scripts.CONCURRENCY:
            return _rate(f"{whose.capitalize()} has {limits.concurrent_requests} requests running.", retry_after_s)
        case limit_scripts.BUDGET:
            return ApiError(
                402,
                f"The budget of {whose} for this month is used up, or this request could exceed it.",
                type="billing_error",
                code="budget_exceeded",
            )
        case _:
            return budget_unknown()


def budget_unknown() -> ApiError:
    """Budgets fail closed."""
    return ApiError(
        503,
        "The budget cannot be checked at the moment.",
        type="api_error",
        code="budget_unavailable",
        retry_after_s=UNKNOWN_RETRY_S,
    )


def limits_unavailable() -> ApiError:
    return overloaded("The limits cannot be checked at the moment.", retry_after_s=UNKNOWN_RETRY_S)


def _rate(message: str, retry_after_s: float) -> ApiError:
    return ApiError(
        429, message, type="rate_limit_error", code="rate_limit_exceeded", retry_after_s=max(retry_after_s, 0.001)
    )
