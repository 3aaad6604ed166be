"""What a pass over the bytes saw of one item, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.fault import Fault
from intarsia.checking.survey.items import Item
from intarsia.checking.survey.magnitudes import greatest, least_of, without_signed_zeros
from intarsia.checking.survey.matrix_facts import MatrixFacts
from intarsia.checking.survey.matrix_sums import MatrixSums
from intarsia.dtypes import DType
from intarsia.frozen import frozen
from intarsia.layout import unravel
from intarsia.planning.manifest import Chunk, Stored
from intarsia.run.sums.hashing import Sum, add_to
from intarsia.state.names import MASTER
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

_FP16_FROM, _BF16_UP_TO = 0x3267, 0x322B
"""The least magnitude of fp16, as bits, above 0.2, and the greatest of bf16 below 1e-8: where all of a
tensor's are beyond it, its bits may be those of the other type."""

_VARIANCES = {"exp_avg_sq", "max_exp_avg_sq"}
"""State that is a mean of squares, or the largest of them."""

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
        return held or (stored.key or stored.name,)


@dataclass(slots=True)
class ItemStats:
    """What the pass saw of one item; `least` and `used_bits` only where a fault may show in them."""

    item: Item
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
    value: float | None = None
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

    def magnitude(self, bits: int) -> float:
        """The number whose magnitude has these bits."""
        dtype = self.item.stored.dtype
        return float(as_float64(np.array([bits], bits_dtype(dtype)), dtype)[0])


def has_magnitudes(dtype: DType) -> bool:
    """Whether elements are a sign and a magnitude, of which the greatest are no numbers."""
    return dtype.name in _NOT_FINITE


def first_odd_magnitude(dtype: DType) -> int:
    """The least magnitude, as bits, that no sound tensor holds."""
    return _ABSURD.get(dtype.name, _NOT_FINITE[dtype.name])


def is_variance(item: Item) -> bool:
    """Whether an item is state that is never below zero."""
    return bool(item.kinds & _VARIANCES)


def telling_bits(dtype: DType, bits: Bits, most: Bits, master: bool) -> tuple[list[int], list[int]]:
    """Of each row of an array the least magnitude, and the bits that its elements use.

    Those are -1 and 0 where no fault can show in them: where magnitudes, of which the greatest are
    `most`, are a weight's, and in other types than a weight's or a main weight's.
    """
    nothing = [-1] * len(bits), [0] * len(bits)
    if dtype.name == "F32" and master:
        return nothing[0], np.bitwise_or.reduce(bits, axis=1).tolist()
    if dtype.name == "F16":
        least = least_of(bits)
        suspicious = least >= _FP16_FROM
    elif dtype.name == "BF16" and (most <= _BF16_UP_TO).any():
        suspicious = most <= _BF16_UP_TO
        least = np.where(suspicious, least_of(bits).astype(np.int64), -1)
    else:
        return nothing
    if not suspicious.any():
        return least.tolist(), nothing[1]
    return least.tolist(), np.where(suspicious, np.bitwise_or.reduce(bits, axis=1), 0).tolist()


def telling_numbers(
    dtype: DType, least: int, most: int, used: int, master: bool
) -> tuple[int, int]:
    """The same of one array whose least and greatest magnitudes, and bits in use, are known."""
    if dtype.name == "F32" and master:
        return -1, used
    if dtype.name == "F16":
        return least, used if least >= _FP16_FROM else 0
    if dtype.name == "BF16" and most <= _BF16_UP_TO:
        return least, used
    return -1, 0


def look(
    stats: ItemStats, matrix_sums: MatrixSums, block: Bits, rows: NDArray[np.int64], column: int
) -> None:
    """Take one block into the sums, and count what no sound tensor holds."""
    stored = stats.item.stored
    dtype = stored.dtype
    if dtype.name in ("U8", "F8_E8M0") and block.size:
        stats.most = max(stats.most, int(block.max()))
    if not has_magnitudes(dtype) or not block.size:
        stats.total = (stats.total + matrix_sums.add(block, rows, column)) % (1 << 64)
        marks = _no_numbers(block, dtype)
        if marks is not None:
            stats.not_finite = stats.not_finite.with_marked(marks, rows, column, stored)
        return
    flat = block.reshape(1, -1)
    found = greatest(flat)
    # A zero below zero is a zero: blocks of both are lost alike.
    even = without_signed_zeros(block) if found.signed_zero[0] else block
    stats.total = (stats.total + matrix_sums.add(even, rows, column)) % (1 << 64)
    most = int(found.magnitude[0])
    stats.most = max(stats.most, most)
    sign = 1 << (8 * dtype.itemsize - 1)
    if most >= first_odd_magnitude(dtype):
        magnitude, limit = block & block.dtype.type(sign - 1), _NOT_FINITE[dtype.name]
        wrong = magnitude >= limit
        stats.not_finite = stats.not_finite.with_marked(wrong, rows, column, stored)
        wrong = (magnitude >= first_odd_magnitude(dtype)) & ~wrong
        stats.absurd = stats.absurd.with_marked(wrong, rows, column, stored)
    if found.below_zero[0] and is_variance(stats.item):
        stats.negative = stats.negative.with_marked(block > sign, rows, column, stored)
    (least,), (used,) = telling_bits(dtype, flat, found.magnitude, MASTER in stats.item.kinds)
    stats.least = min(x for x in (stats.least, least) if x >= 0) if least >= 0 else stats.least
    stats.used_bits |= used


def _no_numbers(block: Bits, dtype: DType) -> NDArray[np.bool_] | None:
    """Where elements of the odder types are NaN or infinite; None where none is."""
    if dtype.name == "C64":
        marks = ~np.isfinite(np.ascontiguousarray(block).view("c8"))
    elif dtype.name in _ONLY_NAN:
        marks = block == _ONLY_NAN[dtype.name]
    else:
        return None
    return marks if marks.any() else None
