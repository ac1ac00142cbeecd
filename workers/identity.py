"""Block identity: which bytes may stand for which tokens (torch-free; decision 0001).

A block is named by a domain-separated SHA-256 chain over the parent block's hash, its token ids and everything that
changes the bytes computed from them. Two processes, two hosts or two releases that agree on a hash agree on the bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final, NewType

import msgspec

from workers.protocol import pack_tokens

BlockHash = NewType("BlockHash", bytes)
"""32 bytes."""

IDENTITY_VERSION: Final = 1
_DOMAIN_ROOT: Final = b"galley.block.root.v1\0"
_DOMAIN_BLOCK: Final = b"galley.block.v1\0"
_DOMAIN_SALT: Final = b"galley.tenant.salt.v1\0"


class CacheIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Every field, except tenant and tokens, that changes the bytes of a block or what they mean."""

    weights_fingerprint: str
    tokenizer_fingerprint: str
    weight_format: str
    """Runtime format of the weights, such as `fp32` or `bf16`."""
    numerics: str
    """Mode (`default`, `batch_invariant`), revision of the kernels and device: everything that changes rounding."""
    cache_dtype: str
    """How rows are stored, packed formats by their names."""
    layout_version: int
    block_tokens: int
    parallel_layout: str = "tp1"
    """Ranks and splits where they change a block's bytes."""

    def canonical(self) -> bytes:
        """Length-prefixed `name=value` pairs in name order: no two different identities share these bytes."""
        out = [struct.pack("<I", IDENTITY_VERSION)]
        for name in sorted(self.__struct_fields__):
            for part in (name, str(getattr(self, name))):
                raw = part.encode()
                out.append(struct.pack("<I", len(raw)) + raw)
        return b"".join(out)

    def fingerprint(self) -> str:
        """Hex digest that workers compare before they exchange blocks."""
        return hashlib.sha256(self.canonical()).hexdigest()


def tenant_salt(*, secret: bytes, tenant: str) -> bytes:
    """The salt of a tenant's blocks, 16 bytes: derived from the installation's secret, never sent by a client.

    Raises ValueError where the secret is empty.
    """
    if not secret:
        raise ValueError("an empty secret would let anybody name a tenant's blocks")
    key = hashlib.sha256(secret).digest()  # a key has at most 64 bytes; a secret may be longer, and every byte counts
    return hashlib.blake2b(_DOMAIN_SALT + tenant.encode(), key=key, digest_size=16).digest()


def root_hash(identity: CacheIdentity, salt: bytes) -> BlockHash:
    """Parent of a chain's first block."""
    raw = identity.canonical()
    return BlockHash(
        hashlib.sha256(_DOMAIN_ROOT + struct.pack("<I", len(raw)) + raw + struct.pack("<I", len(salt)) + salt).digest()
    )


def block_hash(parent: BlockHash, tokens: Sequence[int]) -> BlockHash:
    """Hash of a full block below `parent`."""
    return BlockHash(hashlib.sha256(_DOMAIN_BLOCK + parent + pack_tokens(list(tokens))).digest())


def chain(root: BlockHash, tokens: Sequence[int], block_tokens: int) -> list[BlockHash]:
    """Hashes of the full blocks of `tokens`; a last partial block has no hash."""
    hashes: list[BlockHash] = []
    parent = root
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        parent = block_hash(parent, tokens[start : start + block_tokens])
        hashes.append(parent)
    return hashes
