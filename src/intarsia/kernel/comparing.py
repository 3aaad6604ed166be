"""Runs of files compared with those of other files by the compiled library, many in one call."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.kernel.library import LIBRARY, address, error_of
from intarsia.kernel.room import ROOM_BYTES, THREAD_ROOM, CacheRoom

Numbers = NDArray[np.int64]

NO_FILE = -1

Failed = tuple[OSError | EOFError, int]


class OpenSide(NamedTuple):
    """One side of runs: rows of run k begin `steps[k]` bytes apart, the first at byte `at[k]` of the file
    `files[k]`: an open one, or `NO_FILE` where `at` is an address in memory."""

    files: Numbers
    at: Numbers
    steps: Numbers


_OTHER_ROOM = CacheRoom()


class Compared(NamedTuple):
    """How many runs, from the first on, are known to be equal: all, or none from the first on that differs or
    cannot be read.  `failed` are the error that reading a side met, if any, and the open file."""

    equal: int
    failed: tuple[Failed | None, Failed | None]


def equal_runs(left: OpenSide, right: OpenSide, rows: Numbers, row_bytes: Numbers) -> Compared:
    """Compare runs with each other, up to the first that differs.

    Run k is `rows[k]` rows of `row_bytes[k]` bytes on both sides.
    """
    assert LIBRARY is not None
    count = len(rows)
    asked = [*left, *right, rows, row_bytes]
    assert all(x.dtype == np.int64 and x.shape == (count,) for x in asked)
    assert all(x.flags.c_contiguous for x in asked)
    if not count:
        return Compared(0, (None, None))
    assert rows.min() >= 1 <= row_bytes.min()
    assert all((x.steps >= row_bytes).all() for x in (left, right))
    places = [*map(address, asked), address(THREAD_ROOM.bytes), address(_OTHER_ROOM.bytes)]
    room_bytes = ctypes.c_int64(ROOM_BYTES)
    failed = np.zeros((2, 2), np.int64)
    equal = LIBRARY.intarsia_equal_runs(ctypes.c_int64(count), *places, room_bytes, address(failed))
    one, other = ((error_of(went), file) if went < 0 else None for went, file in failed.tolist())
    return Compared(equal, (one, other))
