"""Windows: a tensor cut into slabs that fit a number of bytes.

A slab fixes the leading indices and takes a range of the next axis, so that its part of any
box of the tensor is one contiguous run of that box's buffer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from intarsia.mesh import Box, Shape

WINDOW_BYTES = 8 << 20
"""How much of a destination tensor moves at once, unless memory is scarcer."""


def windows(shape: Shape, itemsize: int, limit_bytes: int) -> Iterator[Box]:
    """Slabs of at most `limit_bytes` (or one element) that partition a tensor, in order.

    >>> [str(box) for box in windows((4, 6), 1, 12)]
    ['[0:2, 0:6]', '[2:4, 0:6]']
    """
    if not shape or prod(shape) * itemsize <= limit_bytes or not prod(shape):
        yield Box.whole(shape)
        return
    yield from _slabs((), shape, itemsize, limit_bytes)


def _slabs(fixed: Shape, shape: Shape, itemsize: int, limit_bytes: int) -> Iterator[Box]:
    axis = len(fixed)
    row_bytes = prod(shape[axis + 1 :]) * itemsize
    if row_bytes > limit_bytes and axis + 1 < len(shape):
        for index in range(shape[axis]):
            yield from _slabs((*fixed, index), shape, itemsize, limit_bytes)
        return
    step = max(1, limit_bytes // row_bytes)
    rest = (0,) * (len(shape) - axis - 1)
    for lo in range(0, shape[axis], step):
        count = min(step, shape[axis] - lo)
        yield Box((*fixed, lo, *rest), ((1,) * axis + (count,) + shape[axis + 1 :]))


def windows_beside(
    shape: Shape, itemsize: int, limit_bytes: int, done: Iterable[tuple[int, int]]
) -> Iterator[Box]:
    """Slabs as `windows` makes them, of what is left beside ranges of row-major elements.

    >>> [str(box) for box in windows_beside((4, 6), 1, 12, [(0, 6), (12, 14)])]
    ['[1:2, 0:6]', '[2:3, 2:6]', '[3:4, 0:6]']
    """
    done = sorted(done)
    if not done:
        yield from windows(shape, itemsize, limit_bytes)
        return
    at = 0
    for lo, hi in (*done, (prod(shape), prod(shape))):
        for slab in slabs_of(shape, at, lo):
            for window in windows(slab.shape, itemsize, limit_bytes):
                yield window.moved(slab.offsets)
        at = max(at, hi)


def slabs_of(shape: Shape, start: int, end: int) -> Iterator[Box]:
    """The few slabs that together are the row-major elements `start` to `end` of a tensor.

    >>> [str(box) for box in slabs_of((4, 6), 4, 20)]
    ['[0:1, 4:6]', '[1:3, 0:6]', '[3:4, 0:2]']
    """
    yield from _range((), shape, start, end)


def _range(fixed: Shape, shape: Shape, start: int, end: int) -> Iterator[Box]:
    axis = len(fixed)
    if start >= end:
        return
    if axis == len(shape):
        yield Box(fixed, (1,) * axis)
        return
    row = prod(shape[axis + 1 :])
    first, last = -(-start // row), end // row
    if first > last:
        yield from _range((*fixed, last), shape, start - last * row, end - last * row)
        return
    if start < first * row:
        yield from _range((*fixed, first - 1), shape, start - (first - 1) * row, row)
    if first < last:
        rest = (0,) * (len(shape) - axis - 1)
        yield Box((*fixed, first, *rest), ((1,) * axis + (last - first,) + shape[axis + 1 :]))
    yield from _range((*fixed, last), shape, 0, end - last * row)


def is_stretch(inner: Box, outer: Box) -> bool:
    """Whether `inner` is consecutive elements of the row-major buffer of `outer`, which contains it.

    >>> whole = Box((0, 0), (4, 6))
    >>> is_stretch(Box((1, 0), (2, 6)), whole), is_stretch(Box((1, 0), (2, 3)), whole)
    (True, False)
    """
    cut = False
    for n, whole in zip(reversed(inner.shape), reversed(outer.shape), strict=True):
        if cut and n != 1:
            return False
        cut = cut or n != whole
    return True


def flat_start(inner: Box, outer: Box) -> int:
    """The first element of `inner` in the row-major buffer of `outer`, which contains it."""
    start = 0
    for o, p, n in zip(inner.offsets, outer.offsets, outer.shape, strict=True):
        start = start * n + (o - p)
    return start
