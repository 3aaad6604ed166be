"""Casts between element types, rounded to nearest even as torch rounds, with torch or without it."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np

from intarsia.dtypes import DType
from intarsia.errors import UsageError
from intarsia.value.bits import Bits, bits_dtype
from intarsia.value.numpy_cast import bf16_of, in_stretches

WITHOUT_TORCH_BYTES = 4 << 30
"""Torch rounds three times as fast as NumPy, but takes a second and 150 MiB to import."""

_cast_bytes = 0


def may_cast(src: DType, dst: DType) -> bool:
    """Whether elements may change from one type to the other: floating to floating only."""
    return src == dst or (src.floating and dst.floating)


def check_cast(src: DType, dst: DType) -> None:
    """Raise where elements may not change from one type to the other."""
    if not may_cast(src, dst):
        raise UsageError(f"elements cannot be cast from {src} to {dst}")


def cast(bits: Bits, src: DType, dst: DType) -> Bits:
    """The bits of the same numbers in another element type."""
    if src == dst:
        return bits
    check_cast(src, dst)
    if src.name == "BF16" and dst.name == "F32":
        return bits.astype(np.uint32) << 16
    if src.name == "F32" and dst.name == "BF16" and not _is_worth_torch(bits.nbytes):
        return bf16_of(bits)
    if not has_torch():
        return in_stretches(bits, src, dst, lambda numbers: numbers)
    return bits_of(in_torch(torch_tensor(bits, src), dst), dst, bits.shape)


def _is_worth_torch(nbytes: int) -> bool:
    """Whether torch is here already, or so much is cast that it pays to import it."""
    global _cast_bytes
    _cast_bytes += nbytes
    return ("torch" in sys.modules or _cast_bytes > WITHOUT_TORCH_BYTES) and has_torch()


def torch_tensor(bits: Bits, dtype: DType) -> Any:
    """The torch tensor that bits are."""
    import torch

    raw = np.ascontiguousarray(bits)
    tensor = torch.from_numpy(raw.view(f"i{dtype.itemsize}"))
    return tensor.view(getattr(torch, dtype.torch))


def in_torch(tensor: Any, dtype: DType) -> Any:
    """A torch tensor in another element type."""
    import torch

    return tensor.to(getattr(torch, dtype.torch))


def bits_of(tensor: Any, dtype: DType, shape: tuple[int, ...]) -> Bits:
    """The bits that a torch tensor is."""
    import torch

    plain = tensor.view(getattr(torch, f"int{8 * dtype.itemsize}"))
    found: Bits = plain.numpy().view(bits_dtype(dtype)).reshape(shape)
    return found


@cache
def has_torch() -> bool:
    """Whether torch is installed."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return False
    return True
