"""What models are made of, each folder one kernel beside its reference."""

from typing import Final

NUMERICS_REVISION: Final = 3
"""Part of block identity: raised whenever a change to any kernel changes the rounding of its results, so that blocks of
before and after are never mixed."""
