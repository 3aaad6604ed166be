"""Casts where torch is not installed: its numbers, rounded as it rounds them.

Only the bits of a NaN may be others, as they are from one build of torch to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.dtypes import DType, overflows_at
from intarsia.value.bits import Bits, Numbers, as_float64, bits_dtype
from intarsia.value.codes import numbers_of_codes

_NAN = {"BF16": 0x7FC0, "F8_E4M3": 0x7F, "F8_E5M2": 0x7F, "F8_E4M3FNUZ": 0x80, "F8_E5M2FNUZ": 0x80}
_INFINITE = 0x7C
"""Of E5M2, the only type of one byte that has it."""
_AT_ONCE = 1 << 16
"""Elements that are numbers of double precision at one time."""


def in_stretches(bits: Bits, src: DType, dst: DType, change: Callable[[Numbers], Numbers]) -> Bits:
    """The bits of changed numbers in another element type, a stretch of them at a time."""
    raw = np.ascontiguousarray(bits).reshape(-1)
    found = np.empty(raw.shape, bits_dtype(dst))
    for lo in range(0, len(raw), _AT_ONCE):
        stretch = slice(lo, lo + _AT_ONCE)
        found[stretch] = rounded(change(as_float64(raw[stretch], src)), dst)
    return found.reshape(bits.shape)


@np.errstate(invalid="ignore", over="ignore", under="ignore")
def rounded(numbers: NDArray[np.float64], dst: DType) -> NDArray[Any]:
    """The bits of numbers in another type, rounded to nearest even; by way of float32 where that is wider."""
    if dst.name == "F64":
        return numbers.view("<u8")
    single = numbers.astype(np.float32)
    if dst.name == "F32":
        return single.view("<u4")
    if dst.name == "F16":
        return single.astype(np.float16).view("<u2")
    if dst.name == "BF16":
        return bf16_of(single.view("<u4"))
    if dst.name == "F8_E8M0":
        return _powers(single)
    found = _bytes(single.astype(np.float64), dst)
    found[np.isnan(single)] = _NAN[dst.name]
    return found


def bf16_of(bits: Bits) -> NDArray[np.uint16]:
    """The bits of single-precision numbers in bf16, rounded to nearest even."""
    raw = np.ascontiguousarray(bits).reshape(-1)
    found = np.empty(raw.shape, "<u2")
    for lo in range(0, len(raw), _AT_ONCE):
        stretch = slice(lo, lo + _AT_ONCE)
        wide = raw[stretch]
        near = wide >> 16
        near &= 1
        near += wide
        near += 0x7FFF
        near >>= 16
        found[stretch] = near
        nans = (wide & 0x7FFF_FFFF) > 0x7F80_0000  # whose bits may run over
        if nans.any():
            found[stretch][nans] = _NAN["BF16"]
    return found.reshape(bits.shape)


def _bytes(numbers: NDArray[np.float64], dst: DType) -> NDArray[np.uint8]:
    """The nearest codes of a type of one byte, the even one of two that are as near."""
    finite = numbers_of_codes(dst)[:128]
    finite = finite[np.isfinite(finite)]
    size = np.abs(numbers)
    above = np.searchsorted(finite, size).clip(1, len(finite) - 1)
    down, up = size - finite[above - 1], finite[above] - size
    odd = (above & 1).astype(bool)
    found = np.where((down > up) | ((down == up) & ~odd), above, above - 1).astype(np.uint8)
    found[size >= finite[-1]] = len(finite) - 1
    beyond = size >= overflows_at(dst)
    found[beyond] = {"F8_E5M2": _INFINITE, "F8_E4M3": len(finite) - 1}.get(dst.name, _NAN[dst.name])
    signed = np.signbit(numbers)
    if dst.name.endswith("FNUZ"):  # which have no negative zero
        signed &= (found != 0) & ~beyond
    found[signed] |= 0x80
    return found


def _powers(single: NDArray[np.float32]) -> NDArray[np.uint8]:
    """The exponents of numbers, whose signs E8M0 has no room for."""
    wide = single.view("<u4").astype(np.int64)
    exponent, fraction = (wide >> 23) & 0xFF, wide & 0x7FFFFF
    up = (fraction > 1 << 22) | ((fraction == 1 << 22) & (exponent > 0))
    found = np.asarray(exponent + up, np.uint8)
    found[exponent == 255] = 255
    return found
