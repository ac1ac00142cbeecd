from __future__ import annotations

import pytest

from workers.transfer.deadlines import Deadlines


def test_the_answer_to_reserve_is_waited_for_longer_than_the_engine() -> None:
    assert Deadlines().credit_s > Deadlines().engine_s
    with pytest.raises(ValueError, match="credit_s"):
        Deadlines(credit_s=10.0, engine_s=10.0)
