"""Bytes moved from files to files by the compiled library, and summed on their way."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.kernel.library import LIBRARY, address, error_of
from intarsia.kernel.room import CacheRoom

BLOCK_BYTES = 256 << 10
"""What is read, summed and written while it lies in a core's cache."""

Strips = NDArray[Any]
STRIP = np.dtype(
    [(x, "u8") for x in ("rows", "row_bytes", "start", "after", "sum", "sources", "targets")]
)
"""Bytes that are rows, the first being byte `start` of a tensor, which has `after` bytes more after them.

They count towards the sums of the number `sum`.  The strip has so many `sources` and `targets` among the sides; together
each of both is each row.
"""

Sides = NDArray[Any]
SIDE = np.dtype([(x, "u8") for x in ("file", "at", "offset", "width", "box")])
"""What a file holds of the rows of a strip: `width` bytes of each from `offset` on, row after row from byte `at` on.

Those of each strip follow each other, its sources first.  What a target is given belongs to a `box`, in the order of the strips.
"""


class Moved(NamedTuple):
    """Both sums of each number in its tensor; of each box the remainder of its CRC-32, and its bytes."""

    pages: NDArray[np.uint64]
    crcs: NDArray[np.uint32]
    box_crcs: NDArray[np.uint32]
    box_bytes: NDArray[np.uint64]


class MoveError(Exception):
    """A system call that failed, and the number of the side, or of the piece, that it was for."""

    def __init__(self, number: int, error: OSError | EOFError) -> None:
        super().__init__(number, error)
        self.number = number
        self.error = error


_room = CacheRoom(2 * BLOCK_BYTES)


def move(strips: Strips, sides: Sides, sums: int, boxes: int) -> Moved:
    """Move strips between open files, one after another, for so many `sums` and `boxes`.

    Raise `MoveError` at the first call that fails.
    """
    assert LIBRARY is not None
    assert (strips.dtype, sides.dtype) == (STRIP, SIDE)
    assert all(x.flags.c_contiguous for x in (strips, sides))
    of_each = (strips["sources"] + strips["targets"]).astype(np.int64)
    rows = np.repeat(strips["row_bytes"], of_each)
    within = (sides["offset"] <= rows) & (sides["width"] <= rows - sides["offset"])
    known = (strips["sum"] < sums).all() and (sides["box"] < boxes).all()
    within &= (rows > 0) & (rows <= BLOCK_BYTES)
    if of_each.sum() != len(sides) or not known or not within.all():
        raise ValueError("a side is no part of the rows of its strip, or those are too long")
    found = Moved(
        np.zeros(sums, np.uint64),
        np.zeros(sums, np.uint32),
        np.zeros(boxes, np.uint32),
        np.zeros(boxes, np.uint64),
    )
    stopped = np.zeros(1, np.uint64)
    places = map(address, (strips, sides, *found, _room.bytes))
    block_bytes = ctypes.c_uint64(BLOCK_BYTES)
    count = ctypes.c_uint64(len(strips))
    if went := LIBRARY.intarsia_move(count, *places, block_bytes, address(stopped)):
        raise MoveError(int(stopped[0]), error_of(went))
    return found


def write_pieces(pieces: NDArray[np.uint64]) -> None:
    """Write pieces of memory, whose rows are open files, bytes of these, addresses and lengths.

    Those that follow each other are written together.  Raise `MoveError` at the first call that fails.
    """
    assert LIBRARY is not None
    assert (pieces.dtype, len(pieces), pieces.flags.c_contiguous) == (np.dtype("u8"), 4, True)
    stopped, count = np.zeros(1, np.uint64), ctypes.c_uint64(pieces.shape[1])
    if went := LIBRARY.intarsia_write_pieces(count, *map(address, pieces), address(stopped)):
        raise MoveError(int(stopped[0]), error_of(went))
