"""Prefill with a trimmed tail: which rows go on after layer `cut` (V4.1 specification, section 10.1)."""

import enum


class Trim(enum.StrEnum):
    """What prefill does after layer `cut` with the rows before the prompt's tail (its last W tokens).

    `mask` computes them and hides them from the tail: it must agree with `compact` in the rows kept.
    """

    OFF = "off"
    MASK = "mask"
    COMPACT = "compact"


def tail_start(prompt: int, window: int) -> int:
    """The position where the tail of a prompt begins: a prompt of at most a window is all tail, however it is cut."""
    return max(0, prompt - window)
