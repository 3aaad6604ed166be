"""A matrix in a few numbers, summed block by block: what faults look like is seen in them.

The bits of its elements, taken as whole numbers, are summed along every row and every column.
A row of zeros sums to zero; equal rows, blocks, experts and layers have equal sums.  Sums add,
so they come out alike however a matrix was cut into chunks and blocks, and one pass will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.naming import Unit
from intarsia.dtypes import DType
from intarsia.run.values import Bits

Sums = NDArray[np.uint64]
Run = tuple[int, int]

_CUTS = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)
"""How many equal parts ranks cut a matrix into."""

_FEWEST_ROWS = 3
"""Blocks of fewer rows may be equal by chance."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Two of `blocks` equal parts of a matrix that hold the same rows (or columns)."""

    blocks: int
    first: int
    second: int
    every: bool

    def runs(self, length: int) -> tuple[Run, Run]:
        """Where the two lie on an axis of this length."""
        size = length // self.blocks
        a, b = self.first * size, self.second * size
        return (a, a + size), (b, b + size)


@dataclass(frozen=True, slots=True)
class Portrait:
    """What the sums of one matrix told; the sums themselves are gone."""

    unit: Unit
    digest: bytes
    constant: bool
    zero: bool
    zero_rows: tuple[Run, ...] = ()
    zero_columns: tuple[Run, ...] = ()
    repeated_rows: Repeat | None = None
    repeated_columns: Repeat | None = None
    alike_at_end: int = 0

    @property
    def telling(self) -> bool:
        """Whether equality with another matrix means anything: it is one, and not constant."""
        return not self.constant and self.unit.rows > 1 and self.unit.columns > 1


@dataclass
class Sketch:
    """The sums of the matrices of a stored tensor while its blocks come in."""

    units: Sequence[Unit]
    dtype: DType
    rows: Sums = field(init=False)
    columns: Sums = field(init=False)

    def __post_init__(self) -> None:
        first, last = self.units[0], self.units[-1]
        self.rows = np.zeros(last.first_row + last.rows - first.first_row, np.uint64)
        self.columns = np.zeros((len(self.units), first.columns), np.uint64)

    def add(self, bits: Bits, rows: NDArray[np.int64], first_column: int) -> int:
        """Add a block: its elements' bits, and the rows of the stored tensor that they lie in.

        Returns the sum of the block.
        """
        unit = self.units[0]
        at = rows - unit.first_row
        along = bits.sum(axis=1, dtype=np.uint64)
        self.rows[at] += along
        owners = at // max(unit.rows, 1)
        to = slice(first_column, first_column + bits.shape[1])
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        if len(starts) == 1:
            self.columns[owners[0], to] += bits.sum(axis=0, dtype=np.uint64)
        else:
            parts = np.add.reduceat(bits, starts, axis=0, dtype=np.uint64)
            for owner, part in zip(owners[starts].tolist(), parts, strict=True):
                self.columns[owner, to] += part
        return int(along.sum())

    def portraits(self, padded: NDArray[np.bool_] | None = None) -> list[Portrait]:
        """What the sums tell of each matrix; `padded` marks rows that are padding."""
        found = []
        for k, unit in enumerate(self.units):
            lo = unit.first_row - self.units[0].first_row
            rows, columns = self.rows[lo : lo + unit.rows], self.columns[k]
            own = None if padded is None else padded[unit.first_row : unit.first_row + unit.rows]
            found.append(portrait(unit, self.dtype, rows, columns, own))
        return found


def portrait(
    unit: Unit, dtype: DType, rows: Sums, columns: Sums, padded: NDArray[np.bool_] | None = None
) -> Portrait:
    """The portrait of a matrix whose rows and columns have these sums."""
    text = f"{dtype} {unit.rows} {unit.columns}".encode()
    digest = blake2b(text + rows.tobytes() + columns.tobytes(), digest_size=16).digest()
    constant = _alike(rows) and _alike(columns)
    if constant:
        return Portrait(unit, digest, True, not rows.any())
    empty = rows == 0
    if padded is not None:
        empty &= ~padded
    wide = unit.rows > _FEWEST_ROWS and unit.columns > _FEWEST_ROWS and dtype.floating
    return Portrait(
        unit,
        digest,
        False,
        False,
        runs(empty),
        runs(columns == 0),
        repeat_in(rows) if wide else None,
        repeat_in(columns) if wide else None,
        _alike_at_end(rows if padded is None else rows[~padded]),
    )


def _alike_at_end(rows: Sums) -> int:
    """How many of the last rows have the same sum."""
    others = np.flatnonzero(rows != rows[-1]) if len(rows) else rows
    return len(rows) - 1 - int(others[-1]) if len(others) else len(rows)


def _alike(values: NDArray[Any]) -> bool:
    return bool(not len(values) or (values == values[0]).all())


def runs(marks: NDArray[np.bool_], most: int = 4) -> tuple[Run, ...]:
    """The longest stretches of marks, as `(first, end)`.

    >>> runs(np.array([True, False, True, True]))
    ((2, 4), (0, 1))
    """
    if not marks.any():
        return ()
    edges = np.flatnonzero(np.diff(marks.astype(np.int8), prepend=0, append=0))
    pairs = edges.reshape(-1, 2).tolist()
    return tuple((lo, hi) for lo, hi in sorted(pairs, key=lambda p: p[0] - p[1])[:most])


def repeat_in(sums: Sums) -> Repeat | None:
    """The largest equal parts of an axis that hold the same, unless that says nothing.

    A part says something where most of its sums differ from each other: rows that are alike
    (of tokens never trained) make equal blocks in a sound checkpoint.
    """
    for n in _CUTS:
        if len(sums) % n or len(sums) // n < _FEWEST_ROWS:
            continue
        parts = sums.reshape(n, -1)
        seen: dict[bytes, int] = {}
        for k, part in enumerate(parts):
            first = seen.setdefault(part.tobytes(), k)
            if first != k and 2 * len(np.unique(part)) > len(part):
                return Repeat(n, first, k, every=bool((parts == parts[0]).all()))
    return None
