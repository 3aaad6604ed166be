"""Matrices surveyed by the compiled library, many in one call: sums of rows and columns, magnitudes, bits in use."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.kernel.library import LIBRARY, address, check
from intarsia.kernel.room import ROOM_BYTES, THREAD_ROOM

CRC, PAGES, FACTS, REPEATS = 1, 2, 4, 8
"""What may be wanted of a matrix beside its sums: the remainder of its CRC-32; that and the sum of its words in
pages; whether its sums are odd, with their hash; and whether parts of it may repeat, too."""


class Matrix(NamedTuple):
    """A matrix of a file, or of memory: where it begins and what its elements are; what of it is `wanted`.

    Elements have `sign_bit` if they are a sign and a magnitude, or 0.  Its sums, those of rows first, have their places
    from `sums_at` on.  Its first byte is byte `start` of a tensor.
    """

    at: int
    rows: int
    columns: int
    itemsize: int
    sign_bit: int
    sums_at: int
    wanted: int = 0
    start: int = 0

    @property
    def nbytes(self) -> int:
        return self.rows * self.columns * self.itemsize


class SurveyedMatrix(NamedTuple):
    """What a matrix shows; `used` are the bits in use, without a sign that only zeros have."""

    most: int
    least: int
    used: int
    signed_zero: int
    total: int
    odd: int
    hash_low: int
    hash_high: int
    pages: int
    crc: int


class Surveyed(NamedTuple):
    """What matrices show, and all of their sums."""

    seen: list[SurveyedMatrix]
    sums: NDArray[np.uint64]


class Asked(NamedTuple):
    """Matrices that are surveyed in one call, so many sums in all, and the cuts that repeats are looked for in."""

    matrices: Sequence[Matrix]
    sums: int
    cuts: Sequence[int] = ()
    least_part: int = 1


def survey_file(fd: int, asked: Asked) -> Surveyed:
    """What matrices of an open file show, each read a part at a time."""
    assert fd >= 0
    return _survey(fd, asked)


def survey_memory(asked: Asked) -> Surveyed:
    """What matrices in memory show, which begin at addresses."""
    return _survey(-1, asked)


def _survey(fd: int, asked: Asked) -> Surveyed:
    assert LIBRARY is not None
    count = len(asked.matrices)
    matrices = np.frombuffer(array("Q", chain.from_iterable(asked.matrices)), np.uint64)
    assert {m.itemsize for m in asked.matrices} <= {1, 2, 4, 8}
    assert max([m.sums_at + m.rows + m.columns for m in asked.matrices], default=0) <= asked.sums
    sums = np.empty(asked.sums, np.uint64)
    seen = np.empty((count, len(SurveyedMatrix._fields)), np.uint64)
    cuts = np.array([*asked.cuts, asked.least_part], np.uint64)
    went = LIBRARY.intarsia_survey(
        ctypes.c_int(fd),
        ctypes.c_uint64(count),
        address(matrices),
        address(sums),
        address(seen),
        address(cuts),
        ctypes.c_uint64(len(asked.cuts)),
        address(THREAD_ROOM.bytes),
        ctypes.c_uint64(ROOM_BYTES),
    )
    check(went)
    return Surveyed([*map(SurveyedMatrix._make, seen.tolist())], sums)
