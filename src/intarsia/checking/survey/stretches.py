"""Stretches of chunks, which threads look at in any order, and the blocks that each is read in."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from intarsia.frozen import frozen
from intarsia.mesh import Box, Shape

_ROW_BYTES = 32
"""What a row has beside its elements: a number, an owner and sums."""


@frozen
class ChunkStretch:
    """Rows `[lo, hi)` of chunk `number` of an item, all of them or, of one row, columns `[first, end)`."""

    number: int
    lo: int
    hi: int
    first: int
    end: int

    @property
    def size(self) -> int:
        return (self.hi - self.lo) * (self.end - self.first)


@frozen
class Block:
    """Consecutive elements of a chunk: their first place in it, their rows and first column in the tensor."""

    at: int
    rows: NDArray[np.int64]
    column: int
    width: int


def cut_stretches(number: int, box: Box, itemsize: int, most_bytes: int) -> Iterator[ChunkStretch]:
    """A chunk in stretches of at most so many bytes, or one element.

    >>> [s.size for s in cut_stretches(0, Box((0, 0), (3, 4)), 2, 16)]
    [8, 4]
    """
    for lo, hi, first, end in _rectangles(box, itemsize, most_bytes, 0):
        yield ChunkStretch(number, lo, hi, first, end)


def blocks_of(
    stretch: ChunkStretch, box: Box, shape: Shape, itemsize: int, most_bytes: int
) -> Iterator[Block]:
    """A stretch of a chunk in blocks of whole rows, or parts of one."""
    inside = Box((0, 0), (stretch.hi - stretch.lo, stretch.end - stretch.first))
    for lo, hi, first, end in _rectangles(inside, itemsize, most_bytes, _ROW_BYTES):
        at = stretch.lo + lo, stretch.lo + hi, stretch.first + first, stretch.first + end
        yield whole_block(ChunkStretch(stretch.number, *at), box, shape)


def whole_block(stretch: ChunkStretch, box: Box, shape: Shape) -> Block:
    """A stretch of a chunk as one block."""
    before = box.offsets[-1] if box.shape else 0
    return Block(
        stretch.lo * _width(box) + stretch.first,
        _rows_of(box, shape, stretch.lo, stretch.hi),
        before + stretch.first,
        stretch.end - stretch.first,
    )


def _rectangles(
    box: Box, itemsize: int, most_bytes: int, row_bytes: int
) -> Iterator[tuple[int, int, int, int]]:
    """Rows of a box, or columns of one row, that are at most so many bytes."""
    width = _width(box)
    count = box.size // width
    rows_at_once = max(1, most_bytes // (width * itemsize + row_bytes))
    columns_at_once = max(1, min(width, most_bytes // itemsize))
    for lo in range(0, count, rows_at_once):
        hi = min(lo + rows_at_once, count)
        step = columns_at_once if hi - lo == 1 else width
        for first in range(0, width, step):
            yield lo, hi, first, min(first + step, width)


def _width(box: Box) -> int:
    return box.shape[-1] if box.shape else 1


def _rows_of(box: Box, shape: Shape, lo: int, hi: int) -> NDArray[np.int64]:
    """The rows of a tensor that rows `[lo, hi)` of a box of it are."""
    if box.shape[1:-1] == shape[1:-1]:
        first = box.offsets[0] * prod(shape[1:-1]) if box.shape[1:] else 0
        return np.arange(first + lo, first + hi, dtype=np.int64)
    rest, ids, stride = np.arange(lo, hi, dtype=np.int64), np.zeros(hi - lo, np.int64), 1
    for o, n, size in zip(box.offsets[-2::-1], box.shape[-2::-1], shape[-2::-1], strict=True):
        rest, inside = np.divmod(rest, n)
        ids += (o + inside) * stride
        stride *= size
    return ids
