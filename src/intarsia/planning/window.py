"""Windows: a tensor cut into slabs that fit a number of bytes.

A slab fixes the leading indices and takes a range of the next axis, so that its part of any
box of the tensor is one contiguous run of that box's buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from intarsia.mesh import Box, Shape


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


def flat_start(inner: Box, outer: Box) -> int:
    """The first element of `inner` in the row-major buffer of `outer`, which contains it."""
    start = 0
    for o, p, n in zip(inner.offsets, outer.offsets, outer.shape, strict=True):
        start = start * n + (o - p)
    return start
