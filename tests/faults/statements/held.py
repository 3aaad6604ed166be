"""Tensors of two checkpoints as the executor of statements sees them: bits, numbers, differences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Array = NDArray[Any]
Config = Mapping[str, Any]

NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.int64: "I64", torch.int32: "I32", torch.int16: "I16",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Held:
    """One tensor: its element type, and its bits."""

    dtype: torch.dtype
    bits: Array

    @staticmethod
    def of(x: torch.Tensor) -> Held:
        size = x.element_size()
        raw = x.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        return Held(x.dtype, raw.view(f"u{size}").reshape(x.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bits.shape

    def moved(self, bits: Array) -> Held:
        """Other elements of the same type."""
        return Held(self.dtype, np.ascontiguousarray(bits))

    @property
    def tensor(self) -> torch.Tensor:
        size = self.bits.dtype.itemsize
        raw = np.ascontiguousarray(self.bits).reshape(-1).view(np.uint8).copy()
        flat = torch.from_numpy(raw).view(self.dtype) if size else torch.empty(0)
        return flat.reshape(self.shape)

    @cached_property
    def numbers(self) -> NDArray[np.float64]:
        return np.asarray(self.tensor.to(torch.float64).numpy())

    def to(self, dtype: torch.dtype) -> Held:
        return Held.of(self.tensor.to(dtype))


def unequal(x: Held, y: Held) -> Mask:
    """Where elements are not the same bits or, of unlike types, not the same numbers."""
    if x.dtype == y.dtype:
        return np.asarray(x.bits != y.bits)
    u, v = x.numbers, y.numbers
    return np.asarray(~((u == v) | (np.isnan(u) & np.isnan(v))))


def beyond_rounding(x: Held, y: Held) -> Mask:
    """Where elements are not the same, rounded to the narrower type where the types differ."""
    if x.dtype == y.dtype:
        return unequal(x, y)
    if x.dtype.is_floating_point and y.dtype.is_floating_point:
        forth, back = x.to(y.dtype).bits != y.bits, x.bits != y.to(x.dtype).bits
        if x.bits.itemsize == y.bits.itemsize:
            return np.asarray(forth & back)
        return np.asarray(back if x.bits.itemsize < y.bits.itemsize else forth)
    return np.asarray(x.numbers != y.numbers)


def comparable(x: Held, y: Held) -> tuple[Held, Held]:
    """Both in the narrower of their types."""
    narrow = x.dtype if x.bits.itemsize < y.bits.itemsize else y.dtype
    return (x, y) if x.dtype == y.dtype else (x.to(narrow), y.to(narrow))


def differ_at(x: Held, y: Held) -> Mask:
    """Where elements count as different: beyond rounding where that is not all, as they are otherwise."""
    beyond = beyond_rounding(x, y)
    return beyond if beyond.any() else unequal(x, y)


@dataclass(frozen=True, eq=False)
class Sides:
    """The tensors of A and of B, the configuration that both have, and which of them was damaged where that is known."""

    a: Mapping[str, Held]
    b: Mapping[str, Held]
    config: Config
    damaged: str = ""

    @staticmethod
    def of(
        a: Mapping[str, torch.Tensor],
        b: Mapping[str, torch.Tensor],
        config: Config | None,
        damaged: str = "",
    ) -> Sides:
        return Sides(
            {n: Held.of(x) for n, x in a.items()},
            {n: Held.of(x) for n, x in b.items()},
            config or {},
            damaged,
        )

    @property
    def flipped(self) -> Sides:
        return replace(self, a=self.b, b=self.a, damaged=other_side(self.damaged))


def other_side(text: str) -> str:
    """A sentence with A and B in each other's place."""
    return re.sub(r"\b[AB]\b", lambda m: "B" if m[0] == "A" else "A", text)


def number(text: str) -> int:
    return int(text.replace(",", ""))
