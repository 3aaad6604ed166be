"""Elements as raw bits, which is how they move, and as numbers of double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.dtypes import DType
from intarsia.value.codes import numbers_of_codes

Bits = NDArray[Any]
Numbers = NDArray[Any]
_UNSIGNED: dict[int, np.dtype[Any]] = {n: np.dtype(f"<u{n}") for n in (1, 2, 4, 8)}


def bits_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy type that holds one element's bits, unread."""
    return _UNSIGNED[dtype.itemsize]


@np.errstate(invalid="ignore")
def as_float64(bits: Bits, dtype: DType) -> Numbers:
    """The numbers that bits stand for, in double precision (of two parts where complex)."""
    native = {"F64": "f8", "F32": "f4", "F16": "f2", "BOOL": "?", "U8": "u1", "F4": "u1", "I8": "i1", "I16": "i2",
              "U16": "u2", "I32": "i4", "U32": "u4", "I64": "i8", "U64": "u8"}.get(dtype.name)  # fmt: skip
    raw = np.ascontiguousarray(bits)
    if native is not None:
        return raw.view(native).astype(np.float64)
    if dtype.name == "BF16":
        return (raw.astype(np.uint32) << 16).view("f4").astype(np.float64)
    if dtype.name == "C64":
        return raw.view("c8").astype(np.complex128)
    return np.asarray(numbers_of_codes(dtype)[raw.view("u1")])
