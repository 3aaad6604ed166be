"""Factors of their own for the rows, columns or blocks of a matrix, as quantisation has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypothesis import NEARLY_ALL, BitsOfPair, Hypothesis, Mask
from intarsia.mesh import Box

STRIP = 4
"""Rows (or columns) at the edge of a matrix that a factor is estimated from."""

LEAST = 16
"""Elements on an axis from which on a factor for each slice of the other says something."""

Numbers = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Factors:
    """A factor for each block of `rows` x `columns` elements."""

    rows: int
    columns: int
    each: Numbers

    def in_box(self, box: Box) -> Numbers:
        up, across = (np.arange(n) + lo for lo, n in zip(box.offsets, box.shape, strict=True))
        return np.asarray(self.each[np.ix_(up // self.rows, across // self.columns)])


def scale_hypotheses(e: Evidence, step: float) -> Iterator[Hypothesis]:
    """A factor for every row, every column, every block; `step` is how far rounding reaches."""
    if len(e.shape) != 2 or min(e.shape) < LEAST or not _one_sign(e):
        return
    rows, columns = e.shape
    left = _fitted(e.window(Box((0, 0), (rows, STRIP))), 1, step)
    top = _fitted(e.window(Box((0, 0), (STRIP, columns))), 0, step)
    if left is not None and top is not None:
        size = (_size(left, step), _size(top, step))
        if min(size) >= STRIP:
            what = f"block of {size[0]} x {size[1]}"
            yield from _scaled_by(e, what, Factors(*size, _of_blocks(e, *size)), step)
    elif left is not None:
        yield from _scaled_by(e, "row", Factors(1, columns, left[:, None]), step)
    elif top is not None:
        yield from _scaled_by(e, "column", Factors(rows, 1, top[None, :]), step)


def _scaled_by(e: Evidence, what: str, factors: Factors, step: float) -> Iterator[Hypothesis]:
    each = factors.each
    # Rounding alone is a factor near one.
    if np.isfinite(each).all() and np.mean(np.abs(each - 1) > 2 * step) >= 0.5:
        size = f"{each.min():.4g} to {each.max():.4g}"
        text = f"{e.right} is {e.left} times a factor for every {what}, {size}"
        key = ("scaled", factors.rows == 1, factors.columns == 1, what)
        yield Hypothesis("scaled", text, partial(_times, factors, step), key)


def _one_sign(e: Evidence) -> bool:
    """Whether factors above zero may lie between A and B."""
    same = [np.mean(np.sign(w.u) == np.sign(w.v)) for w in e.sample]
    return bool(np.mean(same) >= NEARLY_ALL)


def _fitted(w: BitsOfPair, axis: int, step: float) -> Numbers | None:
    """The factor of every slice of a strip, which is thin on `axis`; None where there is none."""
    u, v = w.u.reshape(w.box.shape), w.v.reshape(w.box.shape)
    with np.errstate(all="ignore"):
        factors = (u * v).sum(axis) / (u * u).sum(axis)
        close = np.abs(v - u * np.expand_dims(factors, axis)) <= step * np.abs(v)
    return factors if close.mean() >= NEARLY_ALL else None


def _size(factors: Numbers, step: float) -> int:
    """How many slices share a factor: every change of it lies at a multiple of that number."""
    changes = np.flatnonzero(np.abs(np.diff(factors)) > 2 * step * np.abs(factors[1:])) + 1
    return int(np.gcd.reduce(changes)) if len(changes) else len(factors)


def _of_blocks(e: Evidence, rows: int, columns: int) -> Numbers:
    """The factor of each block, as its first few rows show it."""
    starts = np.arange(0, e.shape[1], columns)
    out = []
    for at in range(0, e.shape[0], rows):
        w = e.window(Box((at, 0), (min(STRIP, e.shape[0] - at), e.shape[1])))
        u, v = w.u.reshape(w.box.shape), w.v.reshape(w.box.shape)
        with np.errstate(all="ignore"):
            both, square = (np.add.reduceat((u * x).sum(0), starts) for x in (v, u))
            out.append(both / square)
    return np.array(out)


def _times(factors: Factors, step: float, w: BitsOfPair) -> Mask:
    u, v = w.u.reshape(w.box.shape), w.v.reshape(w.box.shape)
    with np.errstate(all="ignore"):
        close = np.abs(v - u * factors.in_box(w.box)) <= step * np.abs(v)
    return np.asarray(close).reshape(w.unequal.shape)
