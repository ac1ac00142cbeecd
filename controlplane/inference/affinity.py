"""Which workers served a prefix lately: a bounded map from prefix digests to addresses.

A thin stand-in for the routing index of block hashes: it knows only what this gateway routed, at a few fixed lengths.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from workers.protocol import Address, pack_tokens

STEP_TOKENS = 64
COARSE_TOKENS = 512
"""Prefixes end at every STEP_TOKENS up to COARSE_TOKENS, and from there on at every COARSE_TOKENS."""
MAX_PREFIXES = 256


@dataclass(frozen=True, slots=True)
class Prefix:
    tokens: int
    digest: bytes


def prefixes(tokens: Sequence[int], scope: bytes) -> list[Prefix]:
    """Prefixes of a prompt, shortest first; `scope` (revision and tenant salt) keeps those of others apart."""
    digest = hashlib.blake2b(scope, digest_size=16)
    found: list[Prefix] = []
    start = 0
    while len(found) < MAX_PREFIXES:
        end = start + (STEP_TOKENS if start < COARSE_TOKENS else COARSE_TOKENS)
        if end > len(tokens):
            break
        digest.update(pack_tokens(list(tokens[start:end])))
        found.append(Prefix(end, digest.digest()))
        start = end
    return found


class PrefixAffinity:
    """Bounded, least recently used go first. Each prefix remembers the addresses that served it last, newest first."""

    def __init__(self, *, capacity: int = 50_000, holders: int = 4) -> None:
        self._capacity = capacity
        self._holders = holders
        self._served: OrderedDict[bytes, tuple[Address, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._served)

    def record(self, found: Sequence[Prefix], addresses: Sequence[Address]) -> None:
        """Shorter prefixes are newer than longer ones, so that eviction takes tails before heads."""
        for prefix in reversed(found):
            old = self._served.pop(prefix.digest, ())
            kept = tuple(address for address in old if address not in addresses)
            self._served[prefix.digest] = (*addresses, *kept)[: self._holders]
        while len(self._served) > self._capacity:
            self._served.popitem(last=False)

    def matched(self, found: Sequence[Prefix]) -> dict[Address, int]:
        """Longest prefix in tokens that each address served, of those in `found`."""
        longest: dict[Address, int] = {}
        for prefix in found:
            for address in self._served.get(prefix.digest, ()):
                longest[address] = prefix.tokens
        return longest
