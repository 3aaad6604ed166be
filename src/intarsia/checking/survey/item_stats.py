"""What a pass over the bytes saw of one item, block by block."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.fault import Fault
from intarsia.checking.survey.items import Item
from intarsia.checking.survey.matrix_facts import MatrixFacts
from intarsia.checking.survey.matrix_sums import MatrixSums
from intarsia.dtypes import DType
from intarsia.layout import unravel
from intarsia.planning.manifest import Chunk, Stored
from intarsia.run.room import Room
from intarsia.run.sums.hashing import Sum
from intarsia.value.bits import Bits, as_float64, bits_dtype

_NOT_FINITE = {
    "F64": 0x7FF0 << 48, "F32": 0x7F80 << 16, "BF16": 0x7F80, "F16": 0x7C00,
    "F8_E5M2": 0x7C, "F8_E4M3": 0x7F,
}  # fmt: skip
"""The least magnitude, as bits, that is no finite number."""

_ABSURD = {"F64": 0x4197_D784 << 32, "F32": 0x4CBE_BC20, "BF16": 0x4CBF}
"""The magnitude, as bits, from which on no weight is plausible: 1e8."""

_ONLY_NAN = {"F8_E8M0": 0xFF, "F8_E4M3FNUZ": 0x80, "F8_E5M2FNUZ": 0x80}
"""The bits of the one element that is no number, in types without infinity and signed zero."""

_VARIANCES = {"exp_avg_sq", "max_exp_avg_sq"}
"""State that is a mean of squares, or the largest of them."""

_MOST_ROWS = 256
"""Of how many rows with odd elements it is known which tensors they belong to."""


@dataclass
class Odd:
    """Elements that no sound tensor holds: how many, the first of them, and the rows they lie in."""

    count: int = 0
    first: tuple[int, ...] = ()
    rows: set[int] = field(default_factory=set)

    def add(
        self, marks: NDArray[np.bool_], rows: NDArray[np.int64], column: int, stored: Stored
    ) -> None:
        """Add those that are marked in a block of a stored tensor."""
        if not marks.any():
            return
        if not self.count:
            row, inside = divmod(int(marks.argmax()), marks.shape[1])
            at = int(rows[row]) * (stored.shape[-1] if stored.shape else 1) + column + inside
            self.first = unravel(at, stored.shape)
        self.count += int(marks.sum())
        if len(self.rows) < _MOST_ROWS:
            self.rows.update(rows[marks.any(axis=1)].tolist())

    def join(self, later: Odd) -> None:
        """Add those of a later part of the same stored tensor."""
        self.first = later.first if not self.count else self.first
        self.count += later.count
        if len(self.rows) < _MOST_ROWS:
            self.rows |= later.rows

    def tensors(self, stored: Stored) -> tuple[str, ...]:
        """The logical tensors that they belong to; all that are stored where the rows are too many."""
        held = stored.layout.tensors
        if len(held) > 1 and len(self.rows) < _MOST_ROWS:
            width = stored.shape[-1] if stored.shape else 1
            flat = stored.layout.reshape(-1)
            rows = (flat.narrow(0, row * width, (row + 1) * width) for row in self.rows)
            hurt = {name for row in rows for name in row.tensors}
            held = tuple(name for name in held if name in hurt)
        return held or (stored.key or stored.name,)


@dataclass
class ItemStats:
    """What the pass saw of one item."""

    item: Item
    matrices: list[MatrixFacts] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    not_finite: Odd = field(default_factory=Odd)
    negative: Odd = field(default_factory=Odd)
    absurd: Odd = field(default_factory=Odd)
    used_bits: int = 0
    least: int = -1
    most: int = 0
    total: int = 0
    rounded: dict[str, Sum] = field(default_factory=dict)
    unsealed: int = 0
    marks: dict[Chunk, tuple[int, bool]] = field(default_factory=dict)
    value: float | None = None
    sums: dict[str, Sum] = field(default_factory=dict)
    lost: int = 0

    @property
    def unread(self) -> bool:
        """Whether some of it could not be read, or is not what was saved."""
        return bool(self.faults or self.lost)

    def join(self, later: ItemStats) -> None:
        """Add what was counted in a later part of the item."""
        self.not_finite.join(later.not_finite)
        self.negative.join(later.negative)
        self.absurd.join(later.absurd)
        self.used_bits |= later.used_bits
        if later.least >= 0:
            self.least = later.least if self.least < 0 else min(self.least, later.least)
        self.most = max(self.most, later.most)
        self.total = (self.total + later.total) % (1 << 64)

    def magnitude(self, bits: int) -> float:
        """The number whose magnitude has these bits."""
        dtype = self.item.stored.dtype
        return float(as_float64(np.array([bits], bits_dtype(dtype)), dtype)[0])


def look(
    stats: ItemStats,
    matrix_sums: MatrixSums,
    block: Bits,
    rows: NDArray[np.int64],
    column: int,
    room: Room,
) -> None:
    """Take one block into the sums, and count what no sound tensor holds; `room` is for magnitudes."""
    stored = stats.item.stored
    dtype = stored.dtype
    if dtype.name in ("U8", "F8_E8M0") and block.size:
        stats.most = max(stats.most, int(block.max()))
    if dtype.name == "C64" or dtype.name in _ONLY_NAN or not dtype.floating or not block.size:
        stats.total = (stats.total + matrix_sums.add(block, rows, column)) % (1 << 64)
        marks = _no_numbers(block, dtype)
        if marks is not None:
            stats.not_finite.add(marks, rows, column, stored)
        return
    sign = block.dtype.type(1 << (8 * dtype.itemsize - 1))
    magnitude = room.take(block.nbytes).view(block.dtype).reshape(block.shape)
    np.bitwise_and(block, sign - block.dtype.type(1), out=magnitude)
    least, most = int(magnitude.min()), int(magnitude.max())
    # A zero below zero is a zero: blocks of both are lost alike.
    even = np.where(magnitude == 0, magnitude, block) if least == 0 else block
    stats.total = (stats.total + matrix_sums.add(even, rows, column)) % (1 << 64)
    stats.least = least if stats.least < 0 else min(stats.least, least)
    stats.most = max(stats.most, most)
    limit = _NOT_FINITE.get(dtype.name)
    if limit is not None and most >= limit:
        stats.not_finite.add(magnitude >= limit, rows, column, stored)
    if limit is not None and most >= (least := _ABSURD.get(dtype.name, limit)):
        stats.absurd.add((magnitude >= least) & (magnitude < limit), rows, column, stored)
    if dtype.name in ("F32", "F16", "BF16"):
        stats.used_bits |= int(np.bitwise_or.reduce(block, axis=None))
    if stats.item.kinds & _VARIANCES and int(block.max()) > int(sign):
        stats.negative.add(block > sign, rows, column, stored)


def _no_numbers(block: Bits, dtype: DType) -> NDArray[np.bool_] | None:
    """Where elements of the odder types are NaN or infinite; None where none is."""
    if dtype.name == "C64":
        marks = ~np.isfinite(np.ascontiguousarray(block).view("c8"))
    elif dtype.name in _ONLY_NAN:
        marks = block == _ONLY_NAN[dtype.name]
    else:
        return None
    return marks if marks.any() else None
