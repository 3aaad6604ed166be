"""Runs of a file read into buffers by the compiled library, many in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from intarsia.kernel.library import LIBRARY, address, check

_UNUSED = np.empty(4 << 10, np.uint8)
"""Where bytes go that lie between those that are read; nobody looks at them."""


def read_runs(fd: int, runs: Sequence[tuple[int, memoryview]]) -> None:
    """Fill each buffer from an open file, beginning at its byte."""
    assert LIBRARY is not None
    starts, lengths = [at for at, _ in runs], [len(view) for _, view in runs]
    data = [ctypes.addressof(ctypes.c_char.from_buffer(view)) if view else 0 for _, view in runs]
    places = np.array([starts, lengths, data], np.uint64)
    count = ctypes.c_uint64(len(runs))
    check(LIBRARY.intarsia_read_runs(fd, count, *map(address, places), address(_UNUSED)))
