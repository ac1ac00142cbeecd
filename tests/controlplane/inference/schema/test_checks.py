from __future__ import annotations

import pytest

from controlplane.inference.errors import ApiError
from controlplane.inference.schema.checks import MAX_DEPTH, decode_object


def test_depth_is_bounded() -> None:
    fine = b'{"a":' * (MAX_DEPTH - 1) + b"1" + b"}" * (MAX_DEPTH - 1)
    assert decode_object(fine, ignored=frozenset())
    with pytest.raises(ApiError, match="nested too deeply"):
        decode_object(b'{"a":[' * MAX_DEPTH + b"1" + b"]}" * MAX_DEPTH, ignored=frozenset())


def test_parameters_without_effect_are_left_out() -> None:
    assert decode_object(b'{"a": 1, "b": 2}', ignored=frozenset({"a"})) == {"b": 2}
