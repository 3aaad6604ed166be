"""Blocks of an item surveyed, in memory or straight from a file, and what they show added to the rest of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.naming import StackedMatrix
from intarsia.checking.survey.elements import Elements
from intarsia.checking.survey.in_memory import survey_in_memory
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checking.survey.matrix_sums import MatrixSums
from intarsia.checking.survey.stretches import Block
from intarsia.kernel.surveying import Asked, Matrix, Surveyed
from intarsia.value.bits import Bits

SUM_BYTES = 8
"""What the sum of a row or a column takes."""


def survey_block(stats: ItemStats, matrix_sums: MatrixSums, block: Block, bits: Bits) -> None:
    """Take a block, whose elements are `bits`, into the sums, and what it shows into the stats."""
    survey = BlockSurvey(stats, matrix_sums, block)
    asked = survey.asked(bits.ctypes.data)
    found = survey_in_memory(asked)
    survey.add(asked.matrices, found)
    if matrix_sums.coarse:
        # A zero below zero is a zero: blocks of both are lost alike.
        zero = bits.dtype.type(0)
        even = np.where(bits == survey.elements.sign_bit, zero, bits)
        for lo, hi in survey.runs:
            matrix_sums.add_ends(int(block.rows[lo]), even[lo:hi])
    if not survey.is_ordinary(found):
        survey.elements.note_odd(stats, bits, block.rows, block.column)


def runs_of_rows(rows: NDArray[np.int64], unit: StackedMatrix) -> list[tuple[int, int]]:
    """Rows `[lo, hi)` of a block that follow each other in one matrix; `rows` are their numbers in the tensor.

    >>> from intarsia.checking.naming import place_of
    >>> runs_of_rows(np.array([1, 2, 3, 4, 7]), StackedMatrix(place_of("w"), 0, 3, 5))
    [(0, 2), (2, 4), (4, 5)]
    """
    owners = (rows - unit.first_row) // max(unit.rows, 1)
    breaks = np.flatnonzero((np.diff(rows) != 1) | (np.diff(owners) != 0)) + 1
    return [*pairwise([0, *breaks.tolist(), len(rows)])]


class BlockSurvey:
    """A block of an item on its way through a survey."""

    def __init__(self, stats: ItemStats, matrix_sums: MatrixSums, block: Block) -> None:
        self._stats, self._matrix_sums, self._block = stats, matrix_sums, block
        self.runs = runs_of_rows(block.rows, matrix_sums.units[0])
        self.elements = Elements.of(stats.item)

    @property
    def sums_bytes(self) -> int:
        """The memory that its sums take."""
        return SUM_BYTES * (len(self._block.rows) + len(self.runs) * self._block.width)

    def asked(self, at: int, wanted: int = 0, start: int = 0) -> Asked:
        """What is asked: `at` is where the block begins, and `start` the number of that byte in a tensor."""
        width, itemsize = self._block.width, self.elements.dtype.itemsize
        matrices, sums_at = [], 0
        for lo, hi in self.runs:
            inside = lo * width * itemsize
            shape = hi - lo, width, itemsize, self.elements.sign_bit
            matrices.append(Matrix(at + inside, *shape, sums_at, wanted, start + inside))
            sums_at += hi - lo + width
        return Asked(matrices, sums_at)

    def is_ordinary(self, found: Surveyed) -> bool:
        """Whether no element is one that no sound item holds."""
        return all(map(self.elements.are_ordinary, found.seen))

    def add(self, matrices: Sequence[Matrix], found: Surveyed) -> None:
        """Add what was found."""
        item, column = self._stats.item, self._block.column
        for (lo, _), at, seen in zip(self.runs, matrices, found.seen, strict=True):
            columns_at = at.sums_at + at.rows
            rows, columns = found.sums[at.sums_at : columns_at], found.sums[columns_at:]
            first_row = int(self._block.rows[lo])
            self._matrix_sums.add(first_row, rows, columns[: at.columns], column)
            least, most, used = self.elements.telling(seen)
            shown = ItemStats(item, used_bits=used, least=least, most=most, total=seen.total)
            self._stats.join(shown)
