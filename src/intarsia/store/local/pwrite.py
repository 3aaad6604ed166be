"""Many buffers written at one position of a file, whole, and sent on their way to the disk."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from intarsia.kernel.library import has_kernel
from intarsia.kernel.writing import write_buffers
from intarsia.store.local.vectors import VECTORS, View, drop_first

if TYPE_CHECKING:
    from typing_extensions import Buffer

WRITEBACK_BYTES = 1 << 20
"""From how many bytes on it pays to have them go to disk at once."""
WRITE_BYTES = 2 << 20
"""How much goes to the kernel in one call: beyond a few MiB it looks for larger pages, slowly."""
COMPILED_BYTES = 128 << 10
"""From how many bytes of each buffer on the compiled library writes them, in smaller calls than pay here; to find
the places of many buffers keeps the interpreter from other threads."""
_WRITE = 2
_NOT_TAKEN = (errno.EINTR, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ESPIPE)
"""What a kernel says that did not begin; the final sync does it all then."""


def write_all(fd: int, start_bytes: int, buffers: Sequence[Buffer]) -> int:
    """Write buffers one after another at a position of a file; how many bytes that were."""
    at = start_bytes
    for views, length_bytes in _batches(buffers):
        end = at + length_bytes
        if length_bytes >= COMPILED_BYTES * len(views) and has_kernel():
            write_buffers(fd, at, views)
            at = end
        while at < end:
            count = os.pwritev(fd, views, at)
            at += count
            if at < end:
                drop_first(views, count)
    return at - start_bytes


def start_write_back(fd: int, start_bytes: int, length_bytes: int) -> None:
    """Have these bytes go to disk now, where the kernel offers that; nothing waits for them."""
    if _sync_file_range is None or not _sync_file_range(fd, start_bytes, length_bytes, _WRITE):
        return
    number = ctypes.get_errno()
    if number not in _NOT_TAKEN:
        raise OSError(number, os.strerror(number))


def _batches(buffers: Sequence[Buffer]) -> Iterator[tuple[list[View], int]]:
    """Buffers, as many at a time as one call takes, and how many bytes those are."""
    views: list[View] = []
    total = 0
    for view in _views(buffers):
        if views and (total + len(view) > WRITE_BYTES or len(views) == VECTORS):
            yield views, total
            views, total = [], 0
        views.append(view)
        total += len(view)
    yield views, total


def _views(buffers: Sequence[Buffer]) -> Iterator[View]:
    """Buffers as bytes, the large ones in parts."""
    for buffer in buffers:
        view = buffer if isinstance(buffer, bytes) else memoryview(buffer).cast("B")
        if len(view) <= WRITE_BYTES:
            yield view
        else:
            whole = memoryview(view)
            yield from (whole[k : k + WRITE_BYTES] for k in range(0, len(whole), WRITE_BYTES))


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


_sync_file_range = _find_sync_file_range()
