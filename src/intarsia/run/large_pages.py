"""Large pages for memory that is about to be filled: a page fault then gives 2 MiB of it, not 4 KiB."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LEAST_BYTES = 4 << 20
"""A shorter stretch may hold no large page at all, which begins at a multiple of its own size."""

_ADVICE = 14 if sys.platform == "linux" else None  # MADV_HUGEPAGE
_PAGE = 64 << 10
"""No small page is larger, on any processor."""

Stretch = tuple[int, int]
"""Where it begins in memory, and where it ends."""


def ask_for_large_pages(tensors: Iterable[torch.Tensor]) -> None:
    """Say that the memory of tensors is used as a whole; a system without large pages, or out of them, gives small ones."""
    if _ADVICE is None:
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    here = (x for x in tensors if x.device.type == "cpu" and x.is_contiguous())
    for start, end in stretches((x.data_ptr(), x.data_ptr() + x.nbytes) for x in here):
        whole = -(-start // _PAGE) * _PAGE
        madvise(whole, end // _PAGE * _PAGE - whole, _ADVICE)


def stretches(found: Iterable[Stretch]) -> Iterator[Stretch]:
    """The long stretches that memory makes, where one part ends within a page of the next.

    >>> list(stretches([(5 << 20, 9 << 20), (0, 5 << 20), (64 << 20, 65 << 20)])) == [(0, 9 << 20)]
    True
    """
    begin = reached = 0
    for start, end in sorted(found):
        if start > reached + _PAGE:
            if reached - begin >= LEAST_BYTES:
                yield begin, reached
            begin = start
        reached = max(reached, end)
    if reached - begin >= LEAST_BYTES:
        yield begin, reached
