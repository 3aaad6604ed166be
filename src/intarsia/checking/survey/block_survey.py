"""Blocks of an item: cut out of its chunks, surveyed in memory or straight from a file, and what they show added up."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.naming import StackedMatrix
from intarsia.checking.survey.elements import Elements
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checking.survey.matrix_facts import Sums
from intarsia.checking.survey.matrix_sums import MatrixSums
from intarsia.frozen import frozen
from intarsia.kernel.library import has_kernel
from intarsia.kernel.surveying import (
    CRC,
    PAGES,
    Asked,
    Matrix,
    Surveyed,
    SurveyedMatrix,
    survey_memory,
)
from intarsia.mesh import Box, Shape
from intarsia.planning.window import flat_start, windows
from intarsia.run.sums.checksum import remainder
from intarsia.run.sums.hashing import sum_run
from intarsia.value.bits import Bits

_ROW_BYTES = 32
"""What a row has beside its elements: a number, an owner and sums."""

SUM_BYTES = 8
"""What the sum of a row or a column takes."""


@frozen
class ChunkStretch:
    """Consecutive elements of chunk `number` of an item: a box of the chunk's."""

    number: int
    box: Box


@frozen
class Block:
    """Consecutive elements of a chunk: their first place in it, their rows and first column in the tensor."""

    at: int
    rows: NDArray[np.int64]
    column: int
    width: int


def blocks_of(
    stretch: Box, chunk: Box, shape: Shape, itemsize: int, most_bytes: int
) -> Iterator[Block]:
    """A stretch of a chunk in blocks of whole rows, or parts of one."""
    row_bytes = prod(stretch.shape[-1:]) * itemsize
    elements_bytes = most_bytes * row_bytes // (row_bytes + _ROW_BYTES)
    for box in windows(stretch.shape, itemsize, elements_bytes):
        yield block_of(box.moved(stretch.offsets), chunk, shape)


def block_of(stretch: Box, chunk: Box, shape: Shape) -> Block:
    """A stretch of a chunk of a tensor as one block."""
    inside, rows = stretch.moved(chunk.offsets), np.zeros(1, np.int64)
    for o, n, size in zip(inside.offsets[:-1], inside.shape[:-1], shape[:-1], strict=True):
        rows = (rows[:, None] * size + np.arange(o, o + n)).reshape(-1)
    at = flat_start(stretch, Box.whole(chunk.shape))
    return Block(at, rows, *(inside.offsets[-1:] or (0,)), *(inside.shape[-1:] or (1,)))


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


def survey_in_memory(asked: Asked) -> Surveyed:
    """What matrices show that begin at addresses."""
    return survey_memory(asked) if has_kernel() else survey_in_numpy(asked)


def survey_in_numpy(asked: Asked) -> Surveyed:
    """What the kernel shows, but for hashes: all sums count as odd, so that somebody looks at them."""
    sums = np.empty(asked.sums, np.uint64)
    return Surveyed([_look(matrix, sums[matrix.sums_at :]) for matrix in asked.matrices], sums)


def _look(matrix: Matrix, sums: Sums) -> SurveyedMatrix:
    """What a matrix shows; its sums, those of rows first, are put where `sums` begin."""
    rows, columns, count = matrix.rows, matrix.columns, matrix.nbytes
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(matrix.at))
    bits = raw.view(f"<u{matrix.itemsize}").reshape(rows, columns)
    sign = bits.dtype.type(matrix.sign_bit)
    signed_zero = bits == sign
    if signed_zero.any():
        bits = np.where(signed_zero, bits.dtype.type(0), bits)
    magnitude = bits & ~sign
    # Few small numbers are summed twice as fast in a narrow type.
    narrow = matrix.itemsize <= 2 and max(rows, columns) <= 1 << 16
    for axis, to in ((1, sums[:rows]), (0, sums[rows : rows + columns])):
        to[:] = bits.sum(axis=axis, dtype=np.uint32 if narrow else np.uint64)
    crc = remainder(raw) if matrix.wanted & (CRC | PAGES) else 0
    pages = sum_run(raw, matrix.start, matrix.start + count).pages if matrix.wanted & PAGES else 0
    return SurveyedMatrix(
        most=int(magnitude.max(initial=0)),
        least=int(magnitude.min()),
        used=int(np.bitwise_or.reduce(bits, axis=None)),
        signed_zero=int(signed_zero.any()),
        total=int(sums[:rows].sum()),
        odd=1,
        hash_low=0,
        hash_high=0,
        pages=pages,
        crc=crc,
    )
