"""Buffers written by the compiled library, in calls of a size that the system takes well."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from intarsia.kernel.library import LIBRARY, address, check


def write_buffers(fd: int, start_bytes: int, buffers: Sequence[bytes | memoryview]) -> None:
    """Write buffers one after another at a position of an open file, whole."""
    assert LIBRARY is not None
    held = [np.frombuffer(buffer, np.uint8) for buffer in buffers if len(buffer)]
    asked = np.array([[x.ctypes.data for x in held], [len(x) for x in held]], np.uint64)
    at, count = ctypes.c_uint64(start_bytes), ctypes.c_uint64(len(held))
    check(LIBRARY.intarsia_write(fd, at, count, *map(address, asked)))
