"""The sums of a matrix while its blocks come in, in as little memory as is given.

Sums along every row and every column are kept where there is room for them.  An axis that is too
long has one sum for each group of neighbours, in which every one counts with a weight of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.naming import StackedMatrix
from intarsia.checking.survey.matrix_facts import CUTS, MatrixFacts, Sums, matrix_facts
from intarsia.dtypes import DType
from intarsia.frozen import frozen_open
from intarsia.run.sums.mixing import odd_numbers
from intarsia.value.bits import Bits

_TRIED = 4096
"""Widths of groups that are looked at for one that suits."""


@frozen_open
class AxisGroups:
    """An axis of so many rows or columns; each `width` neighbours share a sum."""

    length: int
    width: int = 1

    @staticmethod
    def within(length: int, most: int) -> AxisGroups:
        """The axis in at most so many sums, in groups that fit into the blocks of most meshes.

        >>> AxisGroups.within(960, 200)
        AxisGroups(length=960, width=5)
        """
        if length <= most:
            return AxisGroups(length)
        least = -(-length // max(most, 1))
        widths = range(least, min(8 * least, least + _TRIED, length) + 1)
        suits = {
            w: sum(not length // w % n for n in CUTS) for w in widths if not length % w
        }  # fmt: skip
        return AxisGroups(length, max(suits, key=lambda w: (suits[w], -w), default=least))

    @property
    def count(self) -> int:
        return -(-self.length // self.width)

    def fold(self, sums: Sums, first: int) -> tuple[int, Sums]:
        """The sums of neighbours from index `first` on as sums of groups, and the first group."""
        if self.width == 1:
            return first, sums
        group = first // self.width
        starts = np.arange(group * self.width - first, len(sums), self.width)
        starts[0] = 0
        weights = self.table[(first + np.arange(len(sums))) % self.width]
        return group, np.add.reduceat(sums * weights, starts)

    @cached_property
    def table(self) -> Sums:
        """The weights within a group."""
        return odd_numbers(np.arange(self.width))


@dataclass
class MatrixSums:
    """The sums of the matrices of a stored tensor, at most `most` of them; any thread may add."""

    units: Sequence[StackedMatrix]
    dtype: DType
    most: int | None = None
    rows: Sums = field(init=False)
    columns: Sums = field(init=False)
    row_groups: AxisGroups = field(init=False)
    column_groups: AxisGroups = field(init=False)
    _ends: NDArray[np.uint64] | None = field(init=False, default=None)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def __post_init__(self) -> None:
        unit, count = self.units[0], len(self.units)
        rows, columns = unit.rows, unit.columns
        most = (rows + columns) if self.most is None else self.most // count
        # The shorter axis gives the longer one what it leaves of its half.
        self.row_groups = AxisGroups.within(rows, most - min(columns, most // 2))
        self.column_groups = AxisGroups.within(columns, most - min(rows, most // 2))
        self.rows = np.zeros((count, self.row_groups.count), np.uint64)
        self.columns = np.zeros((count, self.column_groups.count), np.uint64)
        if self.coarse:
            self._ends = np.zeros((2, count), np.uint64)
            self._ends[0] -= np.uint64(1)

    @property
    def coarse(self) -> bool:
        """Whether some rows or columns share a sum."""
        return self.row_groups.width > 1 or self.column_groups.width > 1

    def row_sums(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of the sums that rows of the stored tensor count in, from the first unit on."""
        if self.row_groups.width == 1:
            return rows
        unit, inside = np.divmod(rows, self.row_groups.length)
        found: NDArray[np.int64] = unit * self.row_groups.count + inside // self.row_groups.width
        return found

    def add(self, first_row: int, rows: Sums, columns: Sums, first_column: int) -> None:
        """Add the sums of a block of one matrix, from a row of the stored tensor on."""
        owner, first = self._place_of(first_row)
        row, rows = self.row_groups.fold(rows, first)
        column, columns = self.column_groups.fold(columns, first_column)
        with self._lock:
            self.rows[owner, row : row + len(rows)] += rows
            self.columns[owner, column : column + len(columns)] += columns

    def add_ends(self, first_row: int, bits: Bits) -> None:
        """Add the least and the greatest of a block of one matrix, where rows or columns share a sum."""
        assert self._ends is not None
        owner, _ = self._place_of(first_row)
        with self._lock:
            least, most = self._ends[:, owner].tolist()
            self._ends[:, owner] = min(least, int(bits.min())), max(most, int(bits.max()))

    def _place_of(self, row: int) -> tuple[int, int]:
        """The unit that a row of the stored tensor is in, and its number there."""
        return divmod(row - self.units[0].first_row, max(self.units[0].rows, 1))

    def facts(self, padded: NDArray[np.bool_] | None = None) -> list[MatrixFacts]:
        """What the sums show of each matrix; `padded` marks sums of rows that are padding."""
        found, n = [], self.row_groups.count
        widths = self.row_groups.width, self.column_groups.width
        for k, unit in enumerate(self.units):
            first = unit.first_row // max(unit.rows, 1) * n
            own = None if padded is None else padded[first : first + n]
            constant = None if self._ends is None else bool(self._ends[0, k] == self._ends[1, k])
            sums = self.rows[k], self.columns[k]
            found.append(matrix_facts(unit, self.dtype, *sums, own, constant, widths))
        return found
