"""Whether parts of stored tensors are equal element by element, and whether that means anything.

Sums suggest what may be equal; it is said only of what was compared.  Tables of a few different
numbers (scales, masks, positions) are equal by chance or by nature, so a part must hold more
information than chance repeats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.content.meant_zeros import may_be_zero
from intarsia.checking.naming import StackedMatrix
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checking.survey.matrix_facts import MatrixFacts, Run
from intarsia.checkpoint import Checkpoint
from intarsia.errors import CoverageError, FormatError
from intarsia.mesh import Box
from intarsia.planning.manifest import Manifest, Stored
from intarsia.planning.window import windows
from intarsia.quantised import PartRole
from intarsia.run.budget import Budget
from intarsia.value.bits import Bits, as_float64, bits_dtype

Matrix = tuple[Stored, MatrixFacts]

_ROUNDING = 0.02
"""How far a sine that is stored in few bits may be from the sine."""

_MOST_LIKE = 8
"""Matrices that are read to learn how many zeros their like hold."""

_DISTANCES = 64
"""Rows that are looked at to learn whether each is the one before it, one column on."""

_SAMPLE = 1 << 14
"""Elements that are looked at to learn how much information a part holds."""

_TELLS_BITS = 64.0
"""The information, in bits, from which on two parts are not equal by chance."""


class Content:
    """Parts of a checkpoint's matrices, read again to be compared."""

    def __init__(self, manifest: Manifest, budget: Budget) -> None:
        self._manifest, self._budget = manifest, budget
        self._checkpoint: Checkpoint | None = None

    def holds_weights(self, stored: Stored) -> bool:
        """Whether elements are numbers, or codes of a quantised weight: other integers are tables."""
        if stored.dtype.floating:
            return True
        found = self._manifest.quantised.by_part.get(stored.name)
        return found is not None and found[1].role is PartRole.WEIGHT

    def confirmed(self, matrices: Sequence[Matrix]) -> list[Matrix]:
        """The same matrices, with equal digests only where they are equal throughout."""
        alike: dict[bytes, list[int]] = {}
        for k, (_, p) in enumerate(matrices):
            if p.telling:
                alike.setdefault(p.digest, []).append(k)
        out = list(matrices)
        for digest, group in alike.items():
            if len(group) == 1:
                continue
            first: list[int] = []
            for k in group:
                same = next((j for j in first if self._are_equal(matrices[j], matrices[k])), None)
                if same is None:
                    first.append(k)
                stored, p = matrices[k]
                number = first.index(k if same is None else same)
                out[k] = (stored, replace(p, digest=digest + number.to_bytes(4, "little")))
        return out

    def repeats(
        self, stored: Stored, unit: StackedMatrix, axis: int, blocks: Sequence[Run]
    ) -> bool:
        """Whether blocks of rows (or columns) of a matrix are all equal to the first of them."""
        boxes = [_box(unit, axis, run) for run in blocks]
        return all(self._same(stored, boxes[0], stored, box) for box in boxes[1:])

    def is_sparse(self, stored: Stored, unit: StackedMatrix, zeros: int) -> bool:
        """Whether so many zeros in a row may be chance, as many of the other elements are zero too; or are none."""
        held, size = self._held(stored, unit)
        few = size - held < zeros  # sums of doubles run over, and may be zero
        return held > 0 and (few or may_be_zero(zeros, size - held - zeros, size - zeros))

    def look_at_zeros(self, found: Sequence[ItemStats]) -> None:
        """Take no matrix of doubles for zero by its sums, which run over."""
        for stats in found:
            stored = stats.item.stored
            if stored.dtype.itemsize == 8 and any(p.zero for p in stats.matrices):
                held = [(p, p.zero and not self._held(stored, p.unit)[0]) for p in stats.matrices]
                stats.matrices = [replace(p, zero=zero) for p, zero in held]

    def is_sparse_like(self, size: int, like: Sequence[Matrix]) -> bool:
        """Whether a matrix of zeros may be chance, as many elements of its like are zero."""
        counts = [self._held(stored, p.unit) for stored, p in like[:_MOST_LIKE]]
        held, of = (sum(x) for x in zip(*counts, strict=True)) if counts else (0, 0)
        return held > 0 and may_be_zero(size, of - held, of)

    def _held(self, stored: Stored, unit: StackedMatrix) -> tuple[int, int]:
        """How many elements of a matrix are not zero, and how many it has; none where it cannot be read."""
        box = _box(unit, 0, (0, unit.rows))
        try:
            found = (as_float64(x, stored.dtype) for x in self._windows(stored, box))
            return sum(int(np.count_nonzero(x)) for x in found), box.size
        except (FormatError, CoverageError):
            return 0, 0  # what cannot be read is reported elsewhere

    def row(self, stored: Stored, unit: StackedMatrix, number: int) -> NDArray[np.float64]:
        """One row of a matrix as numbers; empty where it cannot be read."""
        held = self._read(stored, _box(unit, 0, (number, number + 1)))
        return as_float64(held, stored.dtype).real

    def is_table(self, stored: Stored, unit: StackedMatrix) -> bool:
        """Whether rows are the sines or cosines of 0, 1, 2 … times an angle for each column.

        Those of rotary embeddings hold every angle twice, in the two halves of a head.
        """
        held = self._read(stored, Box((unit.first_row, 0), (min(3, unit.rows), unit.columns)))
        numbers = as_float64(held, stored.dtype).real.reshape(-1, unit.columns)
        if len(numbers) < 3:
            return False
        zeroth, first, second = numbers
        cosine = np.all(zeroth == 1) and np.allclose(second, 2 * first**2 - 1, atol=_ROUNDING)
        double = 4 * first**2 * (1 - first**2)
        sine = np.all(zeroth == 0) and np.allclose(second**2, double, atol=_ROUNDING)
        return bool(np.any(first)) and bool(cosine or sine)

    def is_of_distances(self, stored: Stored, unit: StackedMatrix, axis: int, run: Run) -> bool:
        """Whether a block's elements say how far row and column are apart, and no more: masks, decays and slopes."""
        box = _box(unit, axis, run)
        few = Box(box.offsets, (min(box.shape[0], _DISTANCES), box.shape[1]))
        rows = self._read(stored, few).reshape(-1, box.shape[1])
        return len(rows) > 2 and np.array_equal(rows[1:, 1:], rows[:-1, :-1])

    def close(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.close()

    def __enter__(self) -> Content:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _are_equal(self, a: Matrix, b: Matrix) -> bool:
        left, right = (_box(p.unit, 0, (0, p.unit.rows)) for _, p in (a, b))
        return a[0].dtype == b[0].dtype and self._same(a[0], left, b[0], right)

    def _same(self, a: Stored, left: Box, b: Stored, right: Box) -> bool:
        bits = 0.0
        try:
            for x, y in zip(self._windows(a, left), self._windows(b, right), strict=True):
                if not np.array_equal(x, y):
                    return False
                bits = bits if bits >= _TELLS_BITS else bits + information(x)
        except (FormatError, CoverageError):
            return False  # what cannot be read is reported elsewhere
        return bits >= _TELLS_BITS

    def _read(self, stored: Stored, box: Box) -> Bits:
        """The elements of a box but for padding; none where it cannot be read, which is reported elsewhere."""
        nothing = np.empty(0, bits_dtype(stored.dtype))
        try:
            return np.concatenate([nothing, *self._windows(stored, box)])
        except (FormatError, CoverageError):
            return nothing

    def _windows(self, stored: Stored, box: Box) -> Iterator[Bits]:
        if self._checkpoint is None:
            self._checkpoint = Checkpoint(self._manifest)
        width = max(stored.shape[-1] if stored.shape else 1, 1)
        flat = stored.layout.reshape(-1, width)
        proven = self._checkpoint.prove(stored.name, flat, stored.dtype)
        for part in windows(box.shape, stored.dtype.itemsize, self._budget.window_bytes // 4):
            where = part.moved(box.offsets)
            if flat.box(where.offsets, where.shape).mapped == part.size:  # padding says nothing
                held = self._checkpoint.read_box(proven, where)
                yield held.view(bits_dtype(stored.dtype))


def _box(unit: StackedMatrix, axis: int, run: Run) -> Box:
    lo, hi = run
    if axis == 0:
        return Box((unit.first_row + lo, 0), (hi - lo, unit.columns))
    return Box((unit.first_row, lo), (unit.rows, hi - lo))


def information(bits: Bits) -> float:
    """How many bits it takes to tell these elements from others of their kind.

    >>> information(np.zeros(100, np.uint16)), round(information(np.arange(16, dtype=np.uint16)))
    (0.0, 64)
    """
    sample = bits[:_SAMPLE]
    if not len(sample):
        return 0.0
    counts = np.unique(sample, return_counts=True)[1]
    share = counts / len(sample)
    return float(-(counts * np.log2(share)).sum()) + 0.0
