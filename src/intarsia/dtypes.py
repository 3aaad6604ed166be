"""Element types, named as safetensors names them.

>>> dtype_named("bf16").name, dtype_named("torch.float32").name
('BF16', 'F32')
"""

from __future__ import annotations

from dataclasses import dataclass

from intarsia.errors import FormatError, UsageError


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: its safetensors name, its torch name, and the bytes of one element."""

    name: str
    torch: str
    itemsize: int
    floating: bool

    def __str__(self) -> str:
        return self.name


_ALL = (
    DType("BOOL", "bool", 1, False),
    DType("U8", "uint8", 1, False),
    DType("I8", "int8", 1, False),
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
    if found is None:
        raise FormatError(
            f"element type {name!r} is not supported - at {where}\n  known: {', '.join(BY_NAME)}",
            hint="sub-byte and framework-private element types cannot be laid out by element",
        )
    return found


def dtype_named(text: str) -> DType:
    """The element type that a user names (`bf16`, `float32`, `torch.float16`, `F8_E4M3`)."""
    short = text.removeprefix("torch.").lower()
    name = _SHORT.get(short, short.upper())
    found = BY_NAME.get(name) or BY_TORCH.get(short)
    if found is None:
        known = ", ".join(sorted([*BY_TORCH, *_SHORT, "bf16"]))
        raise UsageError(f"unknown element type {text!r}", hint=f"one of: {known}")
    return found
