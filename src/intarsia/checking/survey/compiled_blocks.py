"""Blocks of larger items surveyed by the kernel, in memory or straight from a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.survey.compiled import Elements, is_plain
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checking.survey.matrix_sums import MatrixSums
from intarsia.frozen import frozen
from intarsia.kernel.surveying import Asked, Matrix, Surveyed, can_survey, survey_memory
from intarsia.value.bits import Bits

SUM_BYTES = 8
"""What the sum of a row or a column takes."""


@frozen
class Area:
    """Rows `[row, end)` of a stored tensor, and of each `width` elements from a column on."""

    row: int
    end: int
    column: int
    width: int


def area_of(rows: NDArray[np.int64], column: int, width: int) -> Area | None:
    """The area that rows of a tensor are; None where they do not follow each other."""
    first, last = int(rows[0]), int(rows[-1])
    return Area(first, last + 1, column, width) if last - first + 1 == len(rows) else None


class AreaSurvey:
    """An area of an item whose elements lie one after another, on its way through the kernel."""

    def __init__(self, stats: ItemStats, matrix_sums: MatrixSums, area: Area) -> None:
        self._stats, self._matrix_sums, self._area = stats, matrix_sums, area
        self._parts = [*self._by_unit()]
        self._elements = Elements.of(stats.item)

    @staticmethod
    def suits(stats: ItemStats, matrix_sums: MatrixSums) -> bool:
        """Whether the kernel knows the element type, and every row and column has a sum."""
        return can_survey() and is_plain(stats.item.stored.dtype) and not matrix_sums.coarse

    def _by_unit(self) -> Iterator[Area]:
        """The area in parts that lie in one matrix each."""
        unit, row = self._matrix_sums.units[0], self._area.row
        while row < self._area.end:
            after = row + unit.rows - (row - unit.first_row) % unit.rows
            yield Area(row, min(after, self._area.end), self._area.column, self._area.width)
            row = after

    @property
    def sums_bytes(self) -> int:
        """The memory that its sums take."""
        return SUM_BYTES * sum([part.end - part.row + part.width for part in self._parts])

    def asked(self, at: int, wanted: int = 0, start: int = 0) -> Asked:
        """What is asked of the kernel: `at` is where the area begins, and `start` the number of that byte in a tensor."""
        dtype = self._stats.item.stored.dtype
        matrices, sums_at, row_bytes = [], 0, self._area.width * dtype.itemsize
        for part in self._parts:
            rows, inside = part.end - part.row, (part.row - self._area.row) * row_bytes
            shape = rows, part.width, dtype.itemsize, self._elements.sign_bit
            matrices.append(Matrix(at + inside, *shape, sums_at, wanted, start + inside))
            sums_at += rows + part.width
        return Asked(matrices, sums_at)

    def take(self, matrices: Sequence[Matrix], found: Surveyed) -> bool:
        """Add what was found; False, and nothing added, where an element is one that no sound tensor holds."""
        stats, item = self._stats, self._stats.item
        if not all(map(self._elements.are_ordinary, found.seen)):
            return False
        for part, at, seen in zip(self._parts, matrices, found.seen, strict=True):
            columns_at = at.sums_at + at.rows
            rows, columns = found.sums[at.sums_at : columns_at], found.sums[columns_at:]
            self._matrix_sums.add_sums(part.row, rows, columns[: at.columns], part.column)
            least, most, used = self._elements.telling(seen)
            stats.join(ItemStats(item, used_bits=used, least=least, most=most, total=seen.total))
        return True


def survey_block(
    stats: ItemStats, matrix_sums: MatrixSums, block: Bits, rows: NDArray[np.int64], column: int
) -> bool:
    """Take one block into the sums, and what it shows into the stats; False where the kernel does not do that."""
    if not block.size or not AreaSurvey.suits(stats, matrix_sums):
        return False
    area = area_of(rows, column, block.shape[1])
    if area is None or not block.flags.c_contiguous:
        return False
    survey = AreaSurvey(stats, matrix_sums, area)
    asked = survey.asked(block.ctypes.data)
    return survey.take(asked.matrices, survey_memory(asked))
