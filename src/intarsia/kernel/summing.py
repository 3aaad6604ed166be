"""Runs of bytes summed by the compiled library, many in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.kernel.library import LIBRARY, address, check
from intarsia.kernel.room import ROOM_BYTES, THREAD_ROOM

Bytes = NDArray[np.uint8]


class FileRuns(NamedTuple):
    """Runs of a file: `lengths[k]` bytes from byte `at[k]` on, the first being byte `starts[k]` of a tensor."""

    at: Sequence[int]
    lengths: Sequence[int]
    starts: Sequence[int]


class Sums(NamedTuple):
    """Both sums of each of several runs: of its words in pages, and the remainder of its CRC-32."""

    pages: Sequence[int]
    crcs: Sequence[int]


def sum_file(fd: int, runs: FileRuns) -> Sums:
    """The sums of runs of an open file."""
    assert LIBRARY is not None
    count = len(runs.at)
    asked = np.array([runs.at, runs.lengths, runs.starts], np.uint64)
    pages, crcs = np.empty(count, np.uint64), np.empty(count, np.uint32)
    places = [*map(address, asked), address(pages), address(crcs), address(THREAD_ROOM.bytes)]
    room_bytes = ctypes.c_uint64(ROOM_BYTES)
    check(LIBRARY.intarsia_sum_file(fd, ctypes.c_uint64(count), *places, room_bytes))
    return Sums(pages.tolist(), crcs.tolist())


def sum_memory(views: Sequence[Bytes], starts: Sequence[int]) -> Sums:
    """The sums of runs in memory, the first byte of run k being byte `starts[k]` of a tensor."""
    assert LIBRARY is not None
    assert all(view.flags.c_contiguous for view in views)
    data = [view.ctypes.data for view in views]
    asked = np.array([data, [len(view) for view in views], starts], np.uint64)
    pages, crcs = np.empty(len(views), np.uint64), np.empty(len(views), np.uint32)
    places = [*map(address, asked), address(pages), address(crcs)]
    LIBRARY.intarsia_sum_memory(ctypes.c_uint64(len(views)), *places)
    return Sums(pages.tolist(), crcs.tolist())
