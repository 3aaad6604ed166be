"""Elements taken as whole numbers: which of them no sound item holds, and in which a fault may show."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checking.survey.items import SurveyItem
from intarsia.dtypes import DType
from intarsia.frozen import frozen
from intarsia.kernel.surveying import SurveyedMatrix
from intarsia.state.names import MASTER
from intarsia.value.bits import Bits

_NOT_FINITE = {
    "F64": 0x7FF0 << 48, "F32": 0x7F80 << 16, "BF16": 0x7F80, "F16": 0x7C00,
    "F8_E5M2": 0x7C, "F8_E4M3": 0x7F,
}  # fmt: skip
"""The least magnitude, as bits, that is no finite number."""

_ABSURD = {"F64": 0x4197_D784 << 32, "F32": 0x4CBE_BC20, "BF16": 0x4CBF}
"""The magnitude, as bits, from which on no weight is plausible: 1e8."""

_ONLY_NAN = {"F8_E8M0": 0xFF, "F8_E4M3FNUZ": 0x80, "F8_E5M2FNUZ": 0x80}
"""The bits of the one element that is no number, in types without infinity and signed zero."""

FP16_FROM, BF16_UP_TO = 0x3267, 0x322B
"""The least magnitude of fp16, as bits, above 0.2, and the greatest of bf16 below 1e-8: where all of a
tensor's are beyond it, its bits may be those of the other type."""

_VARIANCES = {"exp_avg_sq", "max_exp_avg_sq"}
"""State that is a mean of squares, or the largest of them."""


def is_plain(dtype: DType) -> bool:
    """Whether elements are whole numbers, or a sign and a magnitude of which the greatest are no numbers."""
    return dtype.name in _NOT_FINITE or not (dtype.floating or dtype.name == "C64")


@frozen
class Elements:
    """The elements of an item: a sign, if they have one, and a magnitude.

    Those from `odd_from` on are no numbers or absurd ones, and those with the bit `wrong_sign` are below zero where
    none may be.  Where the type is not a plain one, any may be odd.
    """

    dtype: DType
    sign_bit: int
    odd_from: int
    wrong_sign: int
    of_master: bool

    @staticmethod
    def of(item: SurveyItem) -> Elements:
        dtype = item.stored.dtype
        if dtype.name not in _NOT_FINITE:
            odd_from = 1 << (8 * dtype.itemsize) if is_plain(dtype) else 0
            return Elements(dtype, 0, odd_from, 0, False)
        sign = 1 << (8 * dtype.itemsize - 1)
        odd_from = _ABSURD.get(dtype.name, _NOT_FINITE[dtype.name])
        wrong_sign = sign if item.kinds & _VARIANCES else 0
        return Elements(dtype, sign, odd_from, wrong_sign, MASTER in item.kinds)

    def are_ordinary(self, seen: SurveyedMatrix) -> bool:
        """Whether none is one that no sound item holds."""
        return seen.most < self.odd_from and not seen.used & self.wrong_sign

    def telling(self, seen: SurveyedMatrix) -> tuple[int, int, int]:
        """The least and the greatest magnitude, and the bits in use as far as a fault may show: 0 elsewhere."""
        name, most = self.dtype.name, seen.most
        if not self.sign_bit:
            return seen.least, most if name in ("U8", *_ONLY_NAN) else 0, 0
        used = seen.used | self.sign_bit if seen.signed_zero else seen.used
        shows = (
            (name == "F32" and self.of_master)
            or (name == "F16" and seen.least >= FP16_FROM)
            or (name == "BF16" and most <= BF16_UP_TO)
        )
        return seen.least, most, used if shows else 0

    def note_odd(self, stats: ItemStats, block: Bits, rows: NDArray[np.int64], column: int) -> None:
        """Count those of a block that no sound item holds."""
        place = rows, column, stats.item.stored
        if not self.sign_bit:
            stats.not_finite = stats.not_finite.with_marked(_no_numbers(block, self.dtype), *place)
            return
        magnitude = block & block.dtype.type(self.sign_bit - 1)
        no_number = magnitude >= _NOT_FINITE[self.dtype.name]
        absurd = (magnitude >= self.odd_from) & ~no_number
        stats.not_finite = stats.not_finite.with_marked(no_number, *place)
        stats.absurd = stats.absurd.with_marked(absurd, *place)
        if self.wrong_sign:
            stats.negative = stats.negative.with_marked(block > self.sign_bit, *place)


def _no_numbers(block: Bits, dtype: DType) -> NDArray[np.bool_]:
    """Where elements of the odder types are NaN or infinite."""
    found: NDArray[np.bool_]
    if dtype.name == "C64":
        found = ~np.isfinite(block.view("c8"))
    else:  # most have none, and no element is -1
        found = block == _ONLY_NAN.get(dtype.name, -1)
    return found
