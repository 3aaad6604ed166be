"""The numbers that the codes of quantised weights stand for before they are scaled, where that is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from intarsia.dtypes import DType, greatest
from intarsia.frozen import frozen
from intarsia.quantised import QuantisedWeight
from intarsia.quantised.shapes import GEMM, packing
from intarsia.value.bits import Bits, as_float64
from intarsia.value.codes import OF_FOUR_BITS

_AWQ = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where AWQ puts eight neighbours in a word, from the lowest bits on."""


@frozen
class Codes:
    """How stored elements are codes: one each, or several in a row of a word, or in a column; `top` is the largest number."""

    dtype: DType
    bits: int
    top: float
    order: tuple[int, ...] = (0,)
    down: bool = False

    @property
    def per_element(self) -> int:
        """The codes of a row that one stored element holds."""
        return 1 if self.down else len(self.order)

    @property
    def per_row(self) -> int:
        """The rows of codes that one stored row holds."""
        return len(self.order) if self.down else 1

    def numbers(self, raw: Bits) -> NDArray[np.float32]:
        """The numbers of stored rows; those of packed integers all have one zero point more."""
        rows, columns = raw.shape
        if len(self.order) == 1:
            return as_float64(raw, self.dtype).astype(np.float32)
        axis = 1 if self.down else 2
        codes = np.stack(
            [raw >> (self.bits * k) & ((1 << self.bits) - 1) for k in self.order], axis
        )
        codes = codes.reshape(rows * self.per_row, columns * self.per_element)
        found = OF_FOUR_BITS[codes] if self.dtype.itemsize == 1 else codes
        return np.asarray(found, np.float32)


def codes_of(w: QuantisedWeight) -> Codes | None:
    """The codes of a weight, where it is known what they stand for."""
    dtype, scheme, per = w.main.dtype, w.scheme, packing(w)
    if dtype.name == "I8" or (dtype.name.startswith("F8") and dtype.name != "F8_E8M0"):
        whole = not w.packed or (w.form in ("qdata", "quanto") and _has_a_scale_for_each_row(w))
        if whole and len(w.main.shape) > 1:
            return Codes(dtype, 8, greatest(dtype) if dtype.floating else 127.0)
    if (w.form == "mxfp4" or per == 2) and dtype.itemsize == 1 and dtype.name in ("I8", "U8"):
        return Codes(dtype, 4, 6.0, (0, 1))
    if w.form == "packed" and dtype.name == "I32" and per > 1:
        return Codes(dtype, 32 // per, 1 << (32 // per - 1), tuple(range(per)))
    if w.form != "qweight" or scheme is None or dtype.name != "I32" or scheme.format not in GEMM:
        return None
    if scheme.method == "awq" and scheme.bits == 4:
        return Codes(dtype, 4, 8.0, _AWQ)
    if scheme.method == "gptq" and scheme.bits in (2, 4, 8):
        return Codes(
            dtype, scheme.bits, 1 << (scheme.bits - 1), tuple(range(32 // scheme.bits)), True
        )
    return None


def _has_a_scale_for_each_row(w: QuantisedWeight) -> bool:
    rows = w.main.shape[:1]
    return any(part.shape in (rows, (*rows, 1)) for part in w.others)
