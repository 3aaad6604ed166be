"""Elements of two tensors that differ: which, how many, and how far apart.

A format may keep main weights in the place of the weights: a weight of one side is then the main weight of
the other rounded, and that is what equal means.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.pair.pairs import Pair, read_windows
from intarsia.checkpoint import Checkpoint
from intarsia.dtypes import DType
from intarsia.frozen import frozen
from intarsia.mesh import Box
from intarsia.opened.masters import unlike
from intarsia.run.budget import Budget
from intarsia.value import PLAIN, Value
from intarsia.value.bits import Bits, as_float64, bits_dtype
from intarsia.value.cast import cast

if TYPE_CHECKING:
    from intarsia.checking.pair.change import Number

AT_ONCE = 1 << 18
"""Elements that are numbers of double precision at one time."""


@frozen
class Unequal:
    """A pair that differs: in how many elements, first where, and by how much.

    `text` says how their element types differ; a `kind` with it says that this is all.  `same_bits` says that
    elements of unlike types are the same bits.
    """

    pair: Pair
    elements: int
    first: tuple[int, ...]
    max_abs: float | int
    kind: str = ""
    text: str = ""
    same_bits: bool = False


@dataclass
class Differing:
    """Elements that differ: how many, the first, and the largest distance between two."""

    count: int = 0
    first: tuple[int, ...] | None = None
    most: Number = 0

    def add(self, unequal: NDArray[np.bool_], x: Bits, y: Bits, box: Box, pair: Pair) -> None:
        if not unequal.any():
            return
        self.count += int(unequal.sum())
        if self.first is None:
            self.first = box.index_of(int(unequal.argmax()))
        self.most = max(self.most, _widest(x[unequal], y[unequal], pair), key=nan_first)

    def join(self, later: Differing) -> None:
        """Add what differs in windows that come after these."""
        self.count += later.count
        self.first = later.first if self.first is None else self.first
        self.most = max(self.most, later.most, key=nan_first)


def unequal_at(x: Bits, y: Bits, pair: Pair) -> NDArray[np.bool_]:
    """Where elements are not the same bits or, of unlike types, not the same numbers."""
    if pair.a.dtype == pair.b.dtype:
        return np.asarray(x != y)
    return ~_equal_numbers(x, y, pair.a.dtype, pair.b.dtype, exactly=True)


def same(x: Bits, y: Bits, a: DType, b: DType) -> NDArray[np.bool_]:
    """Where two runs of elements agree; of unlike types, up to rounding to the narrower.

    Of two that are as wide as each other neither is, so that one may be the other rounded.  What is the same
    number agrees, too: a zero of the other sign, a NaN of other bits.
    """
    if a == b:
        return np.asarray(x == y)
    found = np.zeros(len(x), np.bool_)
    if a.floating and b.floating:
        if a.itemsize <= b.itemsize:
            found |= x == cast(y, b, a)
        if a.itemsize >= b.itemsize:
            found |= cast(x, a, b) == y
    rest, whole = np.flatnonzero(~found), not (a.floating or b.floating)
    found[rest] = _equal_numbers(x[rest], y[rest], a, b, exactly=whole)
    return found


def _equal_numbers(x: Bits, y: Bits, a: DType, b: DType, *, exactly: bool) -> NDArray[np.bool_]:
    """Where elements of unlike types are the same number, or both are none; or, unless `exactly`, in double precision."""
    exactly = exactly and not {"I64", "U64"}.isdisjoint((a.name, b.name))
    exactly = exactly and "C64" not in (a.name, b.name)
    found = np.empty(len(x), np.bool_)
    for lo in range(0, len(x), AT_ONCE):
        part = slice(lo, lo + AT_ONCE)
        u, v = as_float64(x[part], a), as_float64(y[part], b)
        found[part] = (u == v) | (np.isnan(u) & np.isnan(v))
        if exactly and found[part].any():
            from intarsia.checking.pair.change import distances  # few tensors hold integers

            found[part] &= distances(x[part], y[part], a, b)[2] == 0
    return found


def _widest(x: Bits, y: Bits, pair: Pair) -> Number:
    """The largest distance between elements, exactly where they are integers; NaN where one is."""
    a, b = pair.a.dtype, pair.b.dtype
    if not (a.floating or b.floating) and "C64" not in (a.name, b.name):
        from intarsia.checking.pair.change import distances  # few tensors hold integers

        parts = (slice(lo, lo + AT_ONCE) for lo in range(0, len(x), AT_ONCE))
        return max(distances(x[part], y[part], a, b)[3] for part in parts)
    most = 0.0
    for lo in range(0, len(x), AT_ONCE):
        u, v = as_float64(x[lo : lo + AT_ONCE], a), as_float64(y[lo : lo + AT_ONCE], b)
        with np.errstate(invalid="ignore"):
            most = max(most, float(np.abs(u - v).max()), key=nan_first)
    return most


def nan_first(value: Number) -> Number:
    """By which the larger of two distances is NaN, where one is."""
    return float("inf") if isnan(value) else value


def differ_from_main(a: Checkpoint, b: Checkpoint, pair: Pair, budget: Budget) -> Unequal | None:
    """How the narrower tensor of a pair differs from the wider one rounded; None where it does not."""
    found = _differ(a, b, pair, budget, PLAIN)
    if found is None or pair.recentred.is_plain:
        return found
    return _differ(a, b, pair, budget, pair.recentred) and found


def _differ(
    a: Checkpoint, b: Checkpoint, pair: Pair, budget: Budget, recentred: Value
) -> Unequal | None:
    found, left_is_wide = Differing(), pair.a.dtype.itemsize > pair.b.dtype.itemsize
    for box, left, right in read_windows(a, b, pair, budget):
        x, y = left.view(bits_dtype(pair.a.dtype)), right.view(bits_dtype(pair.b.dtype))
        if left_is_wide:
            wrong = unlike(y, pair.b.dtype, x, pair.a.dtype, recentred)
        else:
            wrong = unlike(x, pair.a.dtype, y, pair.b.dtype, recentred)
        found.add(wrong, x, y, box, pair)
    if found.first is None:
        return None
    text = f"{pair.a.dtype} in A, {pair.b.dtype} in B; the narrower is not the wider one rounded"
    return Unequal(pair, found.count, found.first, found.most, "", text)
