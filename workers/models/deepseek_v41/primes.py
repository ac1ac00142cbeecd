"""The primes and multipliers that hash n-grams into Engram tables (V4.1 specification, section 3)."""

from functools import cache

INT64_MAX = 2**63 - 1

# Enough witnesses to decide every number below 3.3 * 10^24.
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def is_prime(n: int) -> bool:
    """Miller-Rabin with fixed witnesses: exact for every table size that fits in memory."""
    if n < 2:
        return False
    for p in _WITNESSES:
        if n % p == 0:
            return n == p
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for witness in _WITNESSES:
        x = pow(witness, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


@cache
def engram_primes(layers: int, orders: int, heads: int, vocab_size: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Primes as [layer][n-gram order][head].

    Each (layer, order) starts again at `vocab_size - 1` and takes the next primes above that nobody took before, over
    all layers. Officially the 24 of a layer sum to 384,006,168 and 384,016,682.
    """
    taken: set[int] = set()
    drawn = []
    for _ in range(layers):
        per_layer = []
        for _ in range(orders):
            candidate, row = vocab_size - 1, []
            for _ in range(heads):
                candidate += 1
                while candidate in taken or not is_prime(candidate):
                    candidate += 1
                taken.add(candidate)
                row.append(candidate)
            per_layer.append(tuple(row))
        drawn.append(tuple(per_layer))
    return tuple(drawn)


def engram_multipliers(layer: int, max_ngram_size: int, compressed_vocab_size: int) -> list[int]:
    """Odd multipliers of a layer, by its real index, so small that no product with a compressed id overflows int64."""
    # numpy's generator is part of the definition: the trained tables depend on its exact stream.
    from numpy import int64
    from numpy.random import default_rng

    bound = INT64_MAX // compressed_vocab_size // 2
    drawn = default_rng(10007 * layer).integers(0, bound, size=max_ngram_size, dtype=int64) * 2 + 1
    return [int(m) for m in drawn]
