"""C++ kernels for CPUs, used where a compiler is there; everything runs without them, slower.

`GALLEY_KERNELS` decides: `auto` (the default) takes them where they can be built, `native` makes their absence an
error, `eager` leaves them alone. The choice is made once per process, at the first model.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import time
from typing import Any

import torch

from kernels.native.build import BuildError, load

__all__ = ["FLOAT", "NUMBER", "POINTER", "BuildError", "arithmetic", "declare", "library", "path"]

logger = logging.getLogger(__name__)
_CHOICES = ("auto", "native", "eager")
POINTER, NUMBER, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
"""What the kernels' functions take."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where torch's own operations are to be used.

    Raises ValueError for an unknown `GALLEY_KERNELS`, BuildError where it is `native` and they cannot be had.
    """
    choice = os.environ.get("GALLEY_KERNELS", "auto")
    if choice not in _CHOICES:
        raise ValueError(f"GALLEY_KERNELS is {choice!r}: one of {', '.join(_CHOICES)}")
    if choice == "eager":
        return None
    began = time.monotonic()
    try:
        found = load()
    except BuildError as error:
        if choice == "native":
            raise
        logger.warning(
            "kernels without a compiler: torch's own operations are used", extra={"fields": {"why": str(error)}}
        )
        return None
    seconds = round(time.monotonic() - began, 2)
    logger.info(
        "native kernels ready",
        extra={"fields": {"seconds": seconds, "cpu_capability": torch.backends.cpu.get_cpu_capability()}},
    )
    return found


def declare(**signatures: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Functions of the library by name, with the types that each takes, in this order; they return nothing. None where
    there is no library. Raises as `library`.
    """
    found = library()
    if found is None:
        return None
    chosen = [getattr(found, name) for name in signatures]
    for function, arguments in zip(chosen, signatures.values(), strict=True):
        function.restype, function.argtypes = None, arguments
    return tuple(chosen)


def path() -> str:
    """`native` or `eager`: which way this process goes, for logs and benchmarks."""
    return "eager" if library() is None else "native"


def arithmetic() -> str:
    """`native-8`, `eager-avx2`: which way, and the vectors that sums run in. Where either differs, results that are
    equal to the bit in any company differ in their rounding.
    """
    found = library()
    if found is None:
        return f"eager-{torch.backends.cpu.get_cpu_capability().lower()}"
    return f"native-{found.galley_lanes()}"
