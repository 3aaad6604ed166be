"""What rows are recognised by: the first few elements of each, or only their signs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checkpoint import Checkpoint
from intarsia.dtypes import DType
from intarsia.planning.window import windows
from intarsia.value.bits import as_float64

KEY_ELEMENTS = 16
MOST_ROWS = 1 << 20
SIGNS = 96
"""Signs outlast rounding and scaling; so many of them tell one row from all others."""

FEWEST_SIGNS = 24
LONG = 4
"""A row that is shorter is recognised together with those after it."""

AHEAD = 8
"""How far a row among several alike is followed to tell which of them it is."""

MOST_ALIKE = 256
"""Of so many rows that are alike any may be the one."""

SURE_BITS = 4
"""The bits that the numbers of a run must hold beyond those of the place that it was found in."""

Ints = NDArray[np.int64]


def order_of_slices(e: Evidence, axis: int) -> Ints:
    """For each slice of B on an axis the slice of A that begins alike, or -1."""
    return order_of_rows(*(_front(e, side, axis, KEY_ELEMENTS) for side in (e.a, e.b)))


def order_of_rows(left: NDArray[Any], right: NDArray[Any]) -> Ints:
    """For each row of B the row of A that it is, or -1; -1 for all where chance may have found them."""
    count = max(followers(left), followers(right))
    order = found_again(row_keys(left, count), row_keys(right, count))
    return np.full_like(order, -1) if _by_chance(left, order) else order


def _by_chance(front: NDArray[Any], order: Ints) -> bool:
    """Whether a few numbers a row are too alike for the order they were found in to mean anything.

    A norm that holds three values is found again in any other, a few rows at a time.
    """
    n, width = front.shape
    moved = (order >= 0) & (order != np.arange(n))
    if width >= LONG or not moved.any():
        return False
    runs = 1 + np.count_nonzero(np.diff(order[moved]) != 1)
    return bool(moved.sum() * width * bits_of_number(front) < runs * (np.log2(n) + SURE_BITS))


def bits_of_number(front: NDArray[Any]) -> float:
    """The information of one number in bits: less, the more of the others equal it, or lie close by in its type."""
    held = np.sort(front.reshape(-1)).astype(np.float64)
    n, step = len(held), isqrt(front.size)
    counts = np.unique(held, return_counts=True)[1].astype(np.float64)
    equal = float(np.sum(counts * (counts - 1))) / (n * (n - 1))
    close = float(np.mean(step / (held[step:] - held[:-step] + 1))) / n
    return -float(np.log2(max(equal, close)))


def followers(front: NDArray[Any]) -> int:
    """How many of the next rows tell a row apart: none where it is long, or like no other."""
    n, width = front.shape
    return 0 if width >= LONG or len({*row_keys(front, 0)}) == n else LONG - 1


def row_keys(front: NDArray[Any], count: int) -> list[bytes]:
    """Rows as bytes, each with `count` that follow it.

    >>> row_keys(np.array([[1], [2], [3]], np.uint8), 1)
    [b'\\x01\\x02', b'\\x02\\x03', b'\\x03']
    """
    raw = np.ascontiguousarray(front).tobytes()
    step = len(raw) // max(len(front), 1)
    return [raw[k * step : (k + 1 + count) * step] for k in range(len(front))]


def sign_keys_of(e: Evidence, side: Checkpoint, axis: int) -> list[bytes] | None:
    """The signs of some elements of every slice on an axis; None where signs tell too little.

    They count from the slice's first one, so that a factor of -1 changes nothing.
    """
    dtype = e.logical(side).dtype
    if not dtype.floating or e.whole.size // e.shape[axis] <= FEWEST_SIGNS:
        return None
    front = _front(e, side, axis, SIGNS)
    signs = negative(front, dtype)
    if not signs.any():  # squares: which of two neighbours is larger outlasts most rounding too
        numbers = as_float64(front, dtype).reshape(front.shape)[:, : FEWEST_SIGNS + 1]
        signs = numbers[:, :-1] > numbers[:, 1:]
    return [row.tobytes() for row in np.packbits(signs ^ signs[:, :1], axis=1)]


def negative(bits: NDArray[Any], dtype: DType) -> NDArray[np.bool_]:
    """Which elements have the sign bit set; rounding to zero keeps it."""
    return np.asarray(np.signbit(as_float64(bits, dtype))).reshape(bits.shape)


def found_again(left: Sequence[bytes], right: Sequence[bytes]) -> Ints:
    """For each row of B the row of A that it is, or -1.

    Of several that look alike, the one whose followers look alike the longest.

    >>> found_again([b"a", b"b", b"a", b"c"], [b"a", b"c", b"x"]).tolist()
    [2, 3, -1]
    """
    where: dict[bytes, list[int]] = {}
    for j, key in enumerate(left):
        where.setdefault(key, []).append(j)
    numbers = {key: number for number, key in enumerate(where)}
    a, b = (array("i", (numbers.get(key, -1) for key in keys)) for keys in (left, right))
    runs, places = _LongestRuns(a, b), [*where.values()]
    out = np.full(len(right), -1, np.int64)
    follows = -1
    for i, number in enumerate(b):
        alike = places[number] if number >= 0 else ()
        found = -1
        if len(alike) == 1:
            found = alike[0]
        elif alike and 0 <= follows < len(a) and a[follows] == number:
            found = follows
        elif alike and (follows >= 0 or (i < len(a) and a[i] == number)):
            found = runs.place_of(i, alike[:MOST_ALIKE])
        out[i] = found
        follows = found + 1 if found >= 0 else -1
    return out


class _LongestRuns:
    """Where in A the rows that begin at one of B go on alike the longest, at most `AHEAD` of them.

    Runs are looked up: thousands of rows that are alike begin a few hundred different ones.
    """

    def __init__(self, a: array[int], b: array[int]) -> None:
        self._size, self._a, self._b = a.itemsize, a.tobytes(), b.tobytes()
        self._firsts: dict[bytes, dict[bytes, int]] = {}

    def place_of(self, i: int, alike: Sequence[int]) -> int:
        """The first of the places that begin alike with the longest run; the place itself if it is one of these."""
        number = self._run(self._b, i, 1)
        first = self._firsts.get(number)
        if first is None:
            first = self._firsts[number] = {}
            for j in alike:
                for count in range(1, AHEAD + 1):
                    first.setdefault(self._run(self._a, j, count), j)
        longest = (self._run(self._b, i, count) for count in range(AHEAD, 0, -1))
        run = next(run for run in longest if run in first)
        same = i <= alike[-1] and self._run(self._a, i, len(run) // self._size) == run
        return i if same else first[run]

    def _run(self, rows: bytes, at: int, count: int) -> bytes:
        return rows[at * self._size : (at + count) * self._size]


def mended(order: Ints) -> Ints:
    """The order with its few gaps closed: a row that is wrong itself lies where its neighbours do."""
    lost = np.flatnonzero(order < 0)
    out, n = order.copy(), len(order)
    if not len(lost) or len(lost) > max(1, n // 20):
        return out
    for i in lost:
        if i and out[i - 1] >= 0 and out[i - 1] + 1 < n:
            out[i] = out[i - 1] + 1
    for i in lost[::-1]:
        if i + 1 < n and out[i + 1] > 0 and (i == 0 or out[i] < 0 or out[i] + 1 != out[i + 1]):
            out[i] = out[i + 1] - 1
    return out


def _front(e: Evidence, side: Checkpoint, axis: int, count: int) -> NDArray[Any]:
    """The first `count` elements of every slice on an axis, read piece by piece."""
    n = e.shape[axis]
    axes = [axis, *[k for k in range(len(e.shape)) if k != axis]]
    front = e.as_stored(side).permute(*axes).reshape(n, -1)
    shape = (n, min(count, front.shape[1]))
    size = e.pair.a.dtype.itemsize
    parts = [e.read(front, box, side) for box in windows(shape, size, e.budget.window_bytes // 2)]
    return np.concatenate(parts).reshape(shape)
