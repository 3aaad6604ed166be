"""Element types, named as safetensors names them.

>>> dtype_named("bf16").name, dtype_named("torch.float32").name
('BF16', 'F32')
"""

from __future__ import annotations

from typing import NamedTuple

from intarsia.errors import FormatError, UnsupportedError, UsageError
from intarsia.frozen import frozen


@frozen
class DType:
    """An element type: its safetensors name, its torch name, and the bytes of one element.

    `packs` numbers lie in one element where they are smaller than a byte: torch counts elements on
    the last axis, safetensors numbers.
    """

    name: str
    torch: str
    itemsize: int
    floating: bool
    packs: int = 1

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)


_ALL = (
    DType("BOOL", "bool", 1, False),
    DType("U8", "uint8", 1, False),
    DType("I8", "int8", 1, False),
    DType("F4", "float4_e2m1fn_x2", 1, False, 2),
    DType("F8_E4M3", "float8_e4m3fn", 1, True),
    DType("F8_E5M2", "float8_e5m2", 1, True),
    DType("F8_E8M0", "float8_e8m0fnu", 1, True),
    DType("F8_E4M3FNUZ", "float8_e4m3fnuz", 1, True),
    DType("F8_E5M2FNUZ", "float8_e5m2fnuz", 1, True),
    DType("I16", "int16", 2, False),
    DType("U16", "uint16", 2, False),
    DType("F16", "float16", 2, True),
    DType("BF16", "bfloat16", 2, True),
    DType("I32", "int32", 4, False),
    DType("U32", "uint32", 4, False),
    DType("F32", "float32", 4, True),
    DType("I64", "int64", 8, False),
    DType("U64", "uint64", 8, False),
    DType("F64", "float64", 8, True),
    DType("C64", "complex64", 8, False),
)
BY_NAME = {d.name: d for d in _ALL}
BY_TORCH = {d.torch: d for d in _ALL}
_NOT_OF_TORCH = frozenset({"F6_E2M3", "F6_E3M2"})
"""What safetensors allows and torch cannot hold: four numbers in three bytes."""

_SHORT = {
    "fp32": "F32",
    "fp16": "F16",
    "half": "F16",
    "float": "F32",
    "fp64": "F64",
    "double": "F64",
}


def dtype_of_header(name: str, where: str) -> DType:
    """The element type that a file names."""
    found = BY_NAME.get(name) or BY_TORCH.get(name)
    if found is not None:
        return found
    text = f"element type {name!r} is not supported\n  known: {', '.join(BY_NAME)}"
    if name in _NOT_OF_TORCH:
        raise UnsupportedError(
            text,
            at=where,
            hint="torch has no such element type: dequantise with the library that wrote it, and"
            " save again",
        )
    raise FormatError(
        text, at=where, hint="no known version of safetensors has it: the header may be damaged"
    )


def dtype_named(text: object) -> DType:
    """The element type that a user names (`bf16`, `float32`, `F8_E4M3`) or gives (`torch.float16`)."""
    short = str(text).removeprefix("torch.").lower()
    name = _SHORT.get(short, short.upper())
    found = BY_NAME.get(name) or BY_TORCH.get(short)
    if found is None:
        known = ", ".join(sorted([*BY_TORCH, *_SHORT, "bf16"]))
        raise UsageError(f"unknown element type {text!r}", hint=f"one of: {known}")
    return found


class Extent(NamedTuple):
    """Bits after the point, and the exponents of the least and the greatest number of a type."""

    fraction: int
    least: int
    greatest: int


_EXTENTS = {
    "F64": Extent(52, -1074, 1023),
    "F32": Extent(23, -149, 127),
    "BF16": Extent(7, -133, 127),
    "F16": Extent(10, -24, 15),
    "F8_E5M2": Extent(2, -16, 15),
    "F8_E5M2FNUZ": Extent(2, -17, 15),
    "F8_E4M3": Extent(3, -9, 8),
    "F8_E4M3FNUZ": Extent(3, -10, 7),
    "F8_E8M0": Extent(0, -127, 127),
}


def extent_of(dtype: DType) -> Extent:
    """What numbers a floating-point type has."""
    return _EXTENTS[dtype.name]


def is_lossless(src: DType, dst: DType) -> bool:
    """Whether every number of one type is a number of the other.

    >>> is_lossless(BY_NAME["BF16"], BY_NAME["F32"]), is_lossless(BY_NAME["F16"], BY_NAME["BF16"])
    (True, False)
    """
    if src == dst:
        return True
    a, b = _EXTENTS.get(src.name), _EXTENTS.get(dst.name)
    if a is None or b is None or dst.name == "F8_E8M0":
        return False
    return a.fraction <= b.fraction and a.least >= b.least and a.greatest <= b.greatest


def greatest(dtype: DType) -> float:
    """The greatest finite number of a type."""
    extent = _EXTENTS[dtype.name]
    # E4M3 gives its last code to NaN.
    lost = 2.0 if dtype.name == "F8_E4M3" else 1.0
    return (2.0 - lost * 2.0**-extent.fraction) * 2.0**extent.greatest


def overflows_at(dtype: DType) -> float:
    """From here on a number is rounded to the greatest one for want of a greater."""
    extent = _EXTENTS[dtype.name]
    return greatest(dtype) + 2.0 ** (extent.greatest - extent.fraction - 1)
