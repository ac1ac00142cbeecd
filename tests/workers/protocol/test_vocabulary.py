"""What a failure means for the request."""

from __future__ import annotations

import pytest

from workers.protocol import ErrorCode, RequestId, is_retryable
from workers.serving.requests import refusal

OF_THE_REQUEST = {
    ErrorCode.VERSION,
    ErrorCode.CONTEXT_LENGTH,
    ErrorCode.INVALID,
    ErrorCode.DEADLINE,
    ErrorCode.CANCELLED,
}


@pytest.mark.parametrize("code", list(ErrorCode))
def test_another_pair_is_worth_a_try_unless_the_request_itself_is_at_fault(code: ErrorCode) -> None:
    assert is_retryable(code) is (code not in OF_THE_REQUEST)
    assert refusal(RequestId("a"), code, "").retryable is is_retryable(code)
