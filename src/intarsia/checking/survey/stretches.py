"""Stretches of chunks, which threads look at in any order, and the blocks that each is read in."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from intarsia.frozen import frozen
from intarsia.mesh import Box, Shape
from intarsia.planning.window import flat_start, windows

_ROW_BYTES = 32
"""What a row has beside its elements: a number, an owner and sums."""


@frozen
class ChunkStretch:
    """Consecutive elements of chunk `number` of an item: a box of the chunk's."""

    number: int
    box: Box


@frozen
class Block:
    """Consecutive elements of a chunk: their first place in it, their rows and first column in the tensor."""

    at: int
    rows: NDArray[np.int64]
    column: int
    width: int


def blocks_of(
    stretch: Box, chunk: Box, shape: Shape, itemsize: int, most_bytes: int
) -> Iterator[Block]:
    """A stretch of a chunk in blocks of whole rows, or parts of one."""
    row_bytes = prod(stretch.shape[-1:]) * itemsize
    elements_bytes = most_bytes * row_bytes // (row_bytes + _ROW_BYTES)
    for box in windows(stretch.shape, itemsize, elements_bytes):
        yield block_of(box.moved(stretch.offsets), chunk, shape)


def block_of(stretch: Box, chunk: Box, shape: Shape) -> Block:
    """A stretch of a chunk of a tensor as one block."""
    inside, rows = stretch.moved(chunk.offsets), np.zeros(1, np.int64)
    for o, n, size in zip(inside.offsets[:-1], inside.shape[:-1], shape[:-1], strict=True):
        rows = (rows[:, None] * size + np.arange(o, o + n)).reshape(-1)
    at = flat_start(stretch, Box.whole(chunk.shape))
    return Block(at, rows, *(inside.offsets[-1:] or (0,)), *(inside.shape[-1:] or (1,)))
