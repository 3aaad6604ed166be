"""The boxes of a tensor that a piece of a buffer fills.

A flat stretch that begins or ends within a row is up to three boxes: the end of a row, whole
rows, the beginning of a row.

    >>> from intarsia.layout import Layout
    >>> (piece,) = Layout.of("w", (5, 4)).reshape(-1).narrow(0, 3, 18).pieces
    >>> [str(box) for box, _ in boxes_of_piece(piece, (5, 4))]
    ['[0:1, 3:4]', '[1:4, 0:4]', '[4:5, 0:2]']
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from intarsia.layout import Piece, align
from intarsia.mesh import Box, Shape


def boxes_of_piece(piece: Piece, shape: Shape) -> Iterator[tuple[Box, Piece]]:
    """Each box, and its elements in row-major order: `at` in the tensor, `to` in the buffer."""
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    pieces = [piece.flip()]
    for stride in strides:
        if stride > 1:
            pieces = [q for p in pieces for q in align(p, stride)]
    for found in pieces:
        yield from _boxes(found, shape, strides)


def _boxes(piece: Piece, shape: Shape, strides: list[int]) -> Iterator[tuple[Box, Piece]]:
    """The boxes of a piece none of whose loops carries from one axis into another."""
    loops = tuple(sorted(piece.loops, key=lambda loop: -loop.at))
    counts = []
    for n, stride in zip(shape, strides, strict=True):
        count = 1
        for loop in reversed([x for x in loops if stride <= x.at < stride * n]):
            if loop.at != stride * count:  # a step over other indices: one box for each
                for k in range(loop.n):
                    yield from _boxes(piece.step(loop, k, 1), shape, strides)
                return
            count *= loop.n
        counts.append(count)
    offsets = tuple(piece.at // s % n for n, s in zip(shape, strides, strict=True))
    yield Box(offsets, tuple(counts)), Piece(piece.tensor, piece.at, piece.to, loops)
