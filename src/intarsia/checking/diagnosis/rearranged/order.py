"""Layouts of layouts: reading one arrangement through another.

An *order* is a layout over the single name `ROWS`: entry `i` says which index comes there.
Every rearrangement of a checkpoint is an order of rows, carried to the elements by `along`.

    rows(8).reshape(2, 2, 2).permute(0, 2, 1)      # pairs of a head, half by half
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from intarsia.frozen import frozen_open
from intarsia.layout import Layout, Loop, Piece, meet
from intarsia.planning.coalesce import grid

ROWS = "rows"
ANY_ORDER = "rows-permuted"
MOST_RUNS = 256
"""Runs up to which an order is a layout; beyond, it is a shuffle."""


@frozen_open
class Order:
    """An order of rows, and what it would mean."""

    kind: str
    text: str
    rows: Layout
    key: tuple[object, ...]


def unmoved(n: int) -> Layout:
    """The order that leaves `n` rows where they are."""
    return Layout.of(ROWS, (n,))


def inverse(order: Layout) -> Layout:
    """The order that undoes `order`, which names every row once."""
    return Layout((order.size,), tuple([p.flip() for p in order.pieces]))


def both_ways(orders: Iterable[Order], back: str) -> Iterator[Order]:
    """Each order and its inverse; the inverse's text is `back`, with the order's in its braces."""
    for order in orders:
        yield order
        yield Order(order.kind, back.format(order.text), inverse(order.rows), order.key)


def of_runs(order: NDArray[np.int64]) -> Layout:
    """Any order, written out as runs of consecutive rows; negative entries stay empty.

    >>> of_runs(np.array([2, 3, 0, 1])).pieces[0]
    Piece(tensor='rows', at=0, to=2, loops=(Loop(n=2, at=1, to=1),))
    """
    breaks = np.flatnonzero((np.diff(order) != 1) | (order[:-1] < 0)) + 1
    pieces, at = [], 0
    for part in np.split(order, breaks):
        if part[0] >= 0:
            loops = (Loop(len(part), 1, 1),) if len(part) > 1 else ()
            pieces.append(Piece(ROWS, at, int(part[0]), loops))
        at += len(part)
    return Layout((len(order),), tuple(pieces))


def numbers(order: Layout) -> NDArray[np.int64]:
    """An order as an array of row numbers, -1 where it is empty."""
    out = np.full(order.size, -1, np.int64)
    for p in order.pieces:
        out[p.at + grid(p.loops, "at", 1)] = p.to + grid(p.loops, "to", 1)
    return out


def compose(outer: Layout, inner: Layout) -> Layout:
    """`outer`, whose ids are places of `inner`, as a layout over the tensors of `inner`."""
    out = [
        replace(r, tensor=q.tensor).canonical()
        for p in outer.pieces
        for q in inner.pieces
        for r in meet(p.flip(), q)
    ]
    return Layout(outer.shape, tuple(out))


def along(x: Layout, axis: int, order: Layout) -> Layout:
    """NumPy's `np.take(x, order, axis)`."""
    axes = [axis, *[k for k in range(len(x.shape)) if k != axis]]
    front = x.permute(*axes) if axis else x
    width = front.size // max(front.shape[0], 1)
    wide = []
    for p in order.pieces:
        loops = (*[Loop(r.n, r.at * width, r.to * width) for r in p.loops], Loop(width, 1, 1))
        wide.append(Piece(p.tensor, p.at * width, p.to * width, loops).canonical())
    moved = compose(Layout((order.size, *front.shape[1:]), tuple(wide)), front)
    return moved.permute(*[axes.index(k) for k in range(len(axes))]) if axis else moved
