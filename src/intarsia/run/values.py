"""Changes of value, as opposed to place: casts between element types, shifts of norms.

Elements move as raw bits; only here do bits become numbers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.dtypes import DType
from intarsia.errors import UsageError
from intarsia.run.codes import numbers_of_codes
from intarsia.run.numpy_cast import rounded

Bits = NDArray[Any]
_UNSIGNED: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
_AT_ONCE = 1 << 16
"""Elements that are numbers of double precision at one time."""


def bits_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy type that holds one element's bits, unread."""
    return _UNSIGNED[dtype.itemsize]


def may_cast(src: DType, dst: DType) -> bool:
    """Whether elements may change from one type to the other: floating to floating only."""
    return src == dst or (src.floating and dst.floating)


def cast(bits: Bits, src: DType, dst: DType, shift: float = 0.0) -> Bits:
    """The bits of the same numbers plus `shift`, rounded to nearest even, in another element type."""
    if src == dst and not shift:
        return bits
    if not may_cast(src, dst):
        raise UsageError(f"elements cannot be cast from {src} to {dst}")
    if src.name == "BF16" and dst.name == "F32" and not shift:
        return bits.astype(np.uint32) << 16
    if not _has_torch():
        return _cast_without_torch(bits, src, dst, shift)
    import torch

    raw = np.ascontiguousarray(bits)
    tensor = torch.from_numpy(raw.view(f"i{src.itemsize}" if src.itemsize > 1 else "u1"))
    numbers = tensor.view(getattr(torch, src.torch))
    if shift:
        # Training shifts the rounded weight, so a narrower one is rounded before as well as after.
        numbers = numbers.to(getattr(torch, dst.torch)) if dst.itemsize < src.itemsize else numbers
        numbers = numbers.to(torch.float64 if src.name == "F64" else torch.float32) + shift
    numbers = numbers.to(getattr(torch, dst.torch))
    plain = numbers.view(getattr(torch, f"int{8 * dst.itemsize}" if dst.itemsize > 1 else "uint8"))
    return plain.numpy().view(bits_dtype(dst)).reshape(bits.shape)


@cache
def _has_torch() -> bool:
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return False
    return True


def _cast_without_torch(bits: Bits, src: DType, dst: DType, shift: float) -> Bits:
    raw = np.ascontiguousarray(bits).reshape(-1)
    found = np.empty(raw.shape, bits_dtype(dst))
    for lo in range(0, len(raw), _AT_ONCE):
        numbers = as_float64(raw[lo : lo + _AT_ONCE], src)
        if shift:
            if dst.itemsize < src.itemsize:
                numbers = as_float64(rounded(numbers, dst), dst)
            wide = "f8" if src.name == "F64" else "f4"
            numbers = (numbers.astype(wide) + shift).astype(np.float64)
        found[lo : lo + _AT_ONCE] = rounded(numbers, dst)
    return found.reshape(bits.shape)


@np.errstate(invalid="ignore")
def as_float64(bits: Bits, dtype: DType) -> NDArray[Any]:
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
