"""Block identity: the same everywhere, and different as soon as anything differs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from workers.identity import CacheIdentity, block_hash, chain, root_hash, tenant_salt

IDENTITY = CacheIdentity(
    weights_fingerprint="sha256:6a09e667",
    tokenizer_fingerprint="sha256:bb67ae85",
    weight_format="bf16",
    numerics="default",
    cache_dtype="fp4",
    layout_version=3,
    block_tokens=4,
    parallel_layout="tp1",
)
SALT = bytes(range(16))
TOKENS = [0, 1, 2, 3, 128_000, 2**31 - 1, 5, 6, 7]

FINGERPRINT = "3023b3904147579a5fbac27c6e0751508c2b81a710876178b892ce47ce948fdf"
ROOT = "93deb7daac334311a85e3e55f2ea8672cfb41fef60bd1276683992a3311d0182"
CHAIN = [
    "0f6699ecdec3d2fa8f6db32d4e33f38a3ca1d92f3baf938a6ae173aa36c1c742",
    "17edbef904c3762cfa5d4bf8990d3c25d7f87770b1eb305afdc27c9f27cf0dcb",
]
TENANT_SALT = "af800f043042c5e8703e08f9bf823ade"

PRINT_ALL = """
from tests.workers.test_identity import IDENTITY, SALT, TOKENS
from workers.identity import chain, root_hash, tenant_salt
root = root_hash(IDENTITY, SALT)
print(IDENTITY.fingerprint())
print(root.hex())
print(*(h.hex() for h in chain(root, TOKENS, 4)))
print(tenant_salt(secret=b"installation secret", tenant="acme").hex())
"""


def test_golden_vectors() -> None:
    root = root_hash(IDENTITY, SALT)
    assert IDENTITY.fingerprint() == FINGERPRINT
    assert root.hex() == ROOT
    assert [h.hex() for h in chain(root, TOKENS, 4)] == CHAIN
    assert tenant_salt(secret=b"installation secret", tenant="acme").hex() == TENANT_SALT


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_golden_vectors_in_other_processes(hash_seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.getcwd()}
    ran = subprocess.run(
        [sys.executable, "-c", PRINT_ALL], env=environment, check=True, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.split() == [FINGERPRINT, ROOT, *CHAIN, TENANT_SALT]


OTHERS: dict[str, Any] = {
    "weights_fingerprint": "sha256:6a09e668",
    "tokenizer_fingerprint": "sha256:bb67ae86",
    "weight_format": "fp32",
    "numerics": "batch_invariant",
    "cache_dtype": "fp8",
    "layout_version": 4,
    "block_tokens": 8,
    "parallel_layout": "tp2",
}


def test_every_field_has_a_case() -> None:
    assert set(OTHERS) == set(CacheIdentity.__struct_fields__)


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_a_different_field_is_a_different_chain(name: str) -> None:
    other = msgspec.structs.replace(IDENTITY, **{name: OTHERS[name]})
    assert other.fingerprint() != IDENTITY.fingerprint()
    ours = chain(root_hash(IDENTITY, SALT), TOKENS, 4)
    theirs = chain(root_hash(other, SALT), TOKENS, 4)
    assert not set(ours) & set(theirs)


def test_fields_cannot_run_into_each_other() -> None:
    left = msgspec.structs.replace(IDENTITY, weight_format="bf16a", numerics="b")
    right = msgspec.structs.replace(IDENTITY, weight_format="bf16", numerics="ab")
    assert left.canonical() != right.canonical()


def test_another_salt_parent_or_token_is_another_block() -> None:
    root = root_hash(IDENTITY, SALT)
    known = {
        block_hash(root, [1, 2, 3, 4]),
        block_hash(root, [1, 2, 4, 3]),
        block_hash(root, [1, 2, 3, 5]),
        block_hash(root_hash(IDENTITY, SALT[:-1] + b"\xff"), [1, 2, 3, 4]),
        block_hash(block_hash(root, [1, 2, 3, 4]), [1, 2, 3, 4]),
    }
    assert len(known) == 5


def test_salts_depend_on_secret_and_tenant() -> None:
    salts = {tenant_salt(secret=s, tenant=t) for s in (b"one", b"two") for t in ("acme", "acme ", "other")}
    assert len(salts) == 6
    assert all(len(salt) == 16 for salt in salts)


def test_every_byte_of_a_secret_counts_and_there_has_to_be_one() -> None:
    long = b"x" * 64
    assert tenant_salt(secret=long + b"1", tenant="acme") != tenant_salt(secret=long + b"2", tenant="acme")
    with pytest.raises(ValueError, match="empty"):
        tenant_salt(secret=b"", tenant="acme")


def test_a_partial_block_has_no_hash() -> None:
    root = root_hash(IDENTITY, SALT)
    assert chain(root, TOKENS[:3], 4) == []
    assert chain(root, TOKENS[:7], 4) == chain(root, TOKENS[:4], 4)
    assert chain(root, TOKENS[:8], 4)[0] == chain(root, TOKENS[:4], 4)[0]
