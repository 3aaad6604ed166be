"""Bytes moved from files to files by the compiled library, and summed on their way."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from intarsia.kernel.library import LIBRARY, address, error_of
from intarsia.kernel.room import Room

BLOCK_BYTES = 256 << 10
"""What is read, summed and written while it lies in a core's cache."""


class Side(NamedTuple):
    """What a file holds of the rows of a strip: `width` bytes of each from `offset` on, row after row from byte `at` on."""

    file: str
    at: int
    offset: int
    width: int


class Strip(NamedTuple):
    """Bytes that are rows, the first being byte `start` of a tensor, and the files that they come from and go to.

    The sides of `sources` together are each row, and so are those of `targets`.
    """

    rows: int
    row_bytes: int
    start: int
    sources: Sequence[Side]
    targets: Sequence[Side]


class Moved(NamedTuple):
    """Both sums of a strip, as those of a run, and the remainder of the CRC-32 of what each target was given."""

    pages: int
    crc: int
    target_crcs: Sequence[int]


class MoveError(Exception):
    """A system call that failed, and the side it was for, counted over all strips, the sources of each first."""

    def __init__(self, side: int, error: OSError | EOFError) -> None:
        super().__init__(side, error)
        self.side = side
        self.error = error


_room = Room(2 * BLOCK_BYTES)


def move(
    strips: Sequence[Strip], read: Mapping[str, int], written: Mapping[str, int]
) -> list[Moved]:
    """Move strips, one after another; raise `MoveError` at the first call that fails.

    `read` and `written` are the descriptors of their files.
    """
    assert LIBRARY is not None
    asked = np.array([[*x[:3], len(x.sources), len(x.targets)] for x in strips], np.uint64)
    given = np.array(
        [
            (files[side.file], *side[1:])
            for x in strips
            for files, sides in ((read, x.sources), (written, x.targets))
            for side in sides
        ],
        np.uint64,
    )
    of_each = np.repeat(asked[:, 1], (asked[:, 3] + asked[:, 4]).astype(np.int64))
    if not (given[:, 2:].sum(1) <= of_each).all() or not (of_each <= BLOCK_BYTES).all():
        raise ValueError("a side is no part of the rows of its strip, or those are too long")
    pages, crcs = np.empty(len(strips), np.uint64), np.empty(len(strips), np.uint32)
    side_crcs, stopped = np.zeros(len(given), np.uint32), np.zeros(1, np.uint64)
    count, block_bytes = ctypes.c_uint64(len(strips)), ctypes.c_uint64(BLOCK_BYTES)
    outs = address(pages), address(crcs), address(side_crcs), address(_room.bytes)
    given_at = address(asked), address(given)
    went = LIBRARY.intarsia_move(count, *given_at, *outs, block_bytes, address(stopped))
    if went:
        raise MoveError(int(stopped[0]), error_of(went))
    of_sides = iter(side_crcs.tolist())
    return [
        Moved(*both, list(islice(of_sides, len(x.sources) + len(x.targets)))[len(x.sources) :])
        for x, both in zip(strips, zip(pages.tolist(), crcs.tolist(), strict=True), strict=True)
    ]
