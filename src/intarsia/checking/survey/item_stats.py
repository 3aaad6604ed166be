"""What a pass over the bytes saw of one item, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.fault import Fault
from intarsia.checking.survey.items import SurveyItem
from intarsia.checking.survey.matrix_facts import MatrixFacts
from intarsia.frozen import frozen
from intarsia.layout import unravel
from intarsia.planning.manifest import Chunk, Stored
from intarsia.run.sums.hashing import Sum, add_to
from intarsia.value.bits import as_float64, bits_dtype

_MOST_ROWS = 256
"""Of how many rows with odd elements it is known which tensors they belong to."""


@frozen
class Odd:
    """Elements that no sound tensor holds: how many, the first of them, and the rows they lie in."""

    count: int = 0
    first: tuple[int, ...] = ()
    rows: frozenset[int] = frozenset()

    def with_marked(
        self, marks: NDArray[np.bool_], rows: NDArray[np.int64], column: int, stored: Stored
    ) -> Odd:
        """These, and those that are marked in a later block of a stored tensor."""
        if not marks.any():
            return self
        row, inside = divmod(int(marks.argmax()), marks.shape[1])
        at = int(rows[row]) * (stored.shape[-1] if stored.shape else 1) + column + inside
        hurt = frozenset(rows[marks.any(axis=1)].tolist())
        return self.with_later(Odd(int(marks.sum()), unravel(at, stored.shape), hurt))

    def with_later(self, later: Odd) -> Odd:
        """These, and those of a later part of the same stored tensor."""
        if not self.count or not later.count:
            return self if self.count else later
        rows = self.rows if len(self.rows) >= _MOST_ROWS else self.rows | later.rows
        return Odd(self.count + later.count, self.first, rows)

    def tensors(self, stored: Stored) -> tuple[str, ...]:
        """The logical tensors that they belong to; all that are stored where the rows are too many."""
        held = stored.layout.tensors
        if len(held) > 1 and len(self.rows) < _MOST_ROWS:
            width = stored.shape[-1] if stored.shape else 1
            flat = stored.layout.reshape(-1)
            rows = (flat.narrow(0, row * width, (row + 1) * width) for row in self.rows)
            hurt = {name for row in rows for name in row.tensors}
            held = tuple(name for name in held if name in hurt)
        return held or (stored.on_disk,)


@dataclass(slots=True)
class ItemStats:
    """What the pass saw of one item; `used_bits` only where a fault may show in them."""

    item: SurveyItem
    matrices: Sequence[MatrixFacts] = ()
    faults: Sequence[Fault] = ()
    not_finite: Odd = Odd()
    negative: Odd = Odd()
    absurd: Odd = Odd()
    used_bits: int = 0
    least: int = -1
    most: int = 0
    total: int = 0
    rounded: dict[str, Sum] = field(default_factory=dict)
    unsealed: int = 0
    zero_chunks: Sequence[Chunk] = ()
    sums: dict[str, Sum] = field(default_factory=dict)
    lost: int = 0

    @property
    def unread(self) -> bool:
        """Whether some of it could not be read, or is not what was saved."""
        return bool(self.faults or self.lost)

    def join(self, later: ItemStats) -> None:
        """Add what was counted in a later part of the item."""
        self.not_finite = self.not_finite.with_later(later.not_finite)
        self.negative = self.negative.with_later(later.negative)
        self.absurd = self.absurd.with_later(later.absurd)
        self.used_bits |= later.used_bits
        if later.least >= 0:
            self.least = later.least if self.least < 0 else min(self.least, later.least)
        self.most = max(self.most, later.most)
        self.total = (self.total + later.total) % (1 << 64)
        add_to(self.sums, later.sums)
        add_to(self.rounded, later.rounded)

    @property
    def value(self) -> float | None:
        """The number that an item of one element holds, where it was read."""
        is_one = self.item.stored.layout.size == 1 and bool(self.matrices)
        return self.number_of(self.total) if is_one else None

    def number_of(self, bits: int) -> float:
        """The number that these bits stand for, its real part."""
        dtype = self.item.stored.dtype
        return float(as_float64(np.array([bits], bits_dtype(dtype)), dtype).real[0])
