"""Zeros that begin or end inside a row: a hole of a file, and nothing that a model has.

Pruning, padding and lost ranks leave whole rows of zeros.  What was never written or never fetched of
a file ends where its pages and blocks do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from intarsia.checking.content.same_content import Content
from intarsia.checking.fault import Fault
from intarsia.checking.naming import StackedMatrix, tensors_in
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checking.survey.matrix_facts import MatrixFacts
from intarsia.planning.manifest import Stored

_LEAST = 16
"""Fewer zeros at the end of a row are weights that happen to be zero."""

_DENSE = 0.99
"""The share of the other elements of such a row that are not zero: where many are, the matrix is sparse."""

_FEWEST_OTHERS = 8
"""Fewer than these are all not zero by chance in a row of a sparse matrix, too."""

_MOST_ROWS = 256
"""Rows beyond those that sums tell to be zero that are looked at: large matrices have a sum for several."""


def hole(stats: ItemStats, matrix: MatrixFacts, content: Content) -> Iterator[Fault]:
    """The first stretch of zeros in a matrix that lies in one piece, if its zeros go on beside whole rows."""
    stored, unit = stats.item.stored, matrix.unit
    if len(stats.item.chunks) != 1 or matrix.zero_columns or not content.holds_weights(stored):
        return
    for lo, hi in matrix.zero_rows:
        before = _going_on(stored, unit, lo - 1, -1, content)
        after = _going_on(stored, unit, hi, 1, content)
        if not (before or after):
            continue
        start, end = lo * unit.columns - before, hi * unit.columns + after
        rows = start // unit.columns, -(-end // unit.columns)
        where = f"elements [{start}:{end})"
        text = (
            f"{where} of {unit.rows * unit.columns} of `{stored.name}`, row after row, are all zero:"
            " they begin or end inside a row, as where a part of a file was never written or fetched"
        )
        yield Fault("zero-block", tensors_in(stored, unit, *rows), where, text, end - start)
        return


def _going_on(stored: Stored, unit: StackedMatrix, row: int, step: int, content: Content) -> int:
    """How many zeros follow zero rows in a direction, where they end inside a row that has hardly any other."""
    whole = 0
    while 0 <= row < unit.rows and whole < _MOST_ROWS:
        held = content.row(stored, unit, row)[::step]
        if held.any():
            count = int(np.argmax(held != 0))
            rest = held[count:]  # of a table of sines the first row is zeros and ones
            dense = np.count_nonzero(rest) >= _DENSE * len(rest) and len(np.unique(rest)) > 2
            ends = count >= _LEAST and len(rest) >= _FEWEST_OTHERS and dense
            return whole * unit.columns + count if ends else 0
        row, whole = row + step, whole + 1
    return 0
