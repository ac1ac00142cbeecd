from __future__ import annotations

import mmap
import struct

import pytest
import torch

from workers.engine.arena import Arena, ArenaError


def test_another_mapping_of_the_descriptor_sees_blocks_and_generations() -> None:
    arena = Arena(3, 128)
    arena.bump(1)
    arena.bump(1)
    arena.block(2)[:] = bytes(range(128))
    with mmap.mmap(arena.fd, 0, prot=mmap.PROT_READ) as other:
        assert struct.unpack_from("<3Q", other) == (0, 2, 0)
        start = arena.header_bytes + 2 * arena.block_bytes
        assert other[start : start + 128] == bytes(range(128))
    arena.close()


def test_blocks_are_one_aligned_tensor_over_the_same_memory() -> None:
    arena = Arena(600, 64)
    assert arena.header_bytes == 8192
    assert arena.blocks.data_ptr() % 64 == 0
    arena.blocks[599] = torch.arange(64, dtype=torch.uint8)
    assert bytes(arena.block(599)) == bytes(range(64))
    assert arena.generation(599) == 0
    arena.close()
    arena.close()
    assert arena.blocks[599, 5] == 5  # the memory outlives the descriptor


@pytest.mark.parametrize("slot", [-1, 2])
def test_slots_outside_are_errors(slot: int) -> None:
    arena = Arena(2, 64)
    with pytest.raises(IndexError):
        arena.block(slot)
    with pytest.raises(IndexError):
        arena.bump(slot)


def test_a_pool_beyond_memory_is_refused_with_the_figures() -> None:
    with pytest.raises(ArenaError, match="lower pool_blocks"):
        Arena(2**30, 2**20)
