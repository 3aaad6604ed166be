"""Casts are torch's, bit by bit, for every pair of floating element types."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intarsia.dtypes import BY_NAME, DType
from intarsia.errors import UsageError
from intarsia.run.values import as_float64, bits_dtype, cast, may_cast
from tests.checkpoints import bits, random_tensor

FLOATS = [d for d in BY_NAME.values() if d.floating]
OTHERS = [d for d in BY_NAME.values() if not d.floating and d.name != "F4"]
"""All types but that of two numbers in a byte, which torch does not compute with."""


def of(name: DType) -> torch.dtype:
    return getattr(torch, name.torch)


def some(dtype: DType, count: int = 3000) -> torch.Tensor:
    """Every bit pattern of a byte, or many random ones; ordinary numbers beside them."""
    wild = random_tensor((count,), of(dtype), seed=dtype.itemsize)
    calm = torch.linspace(-600, 600, 999, dtype=torch.float64).to(torch.float32).to(of(dtype))
    return torch.cat([wild.view(torch.uint8), calm.view(torch.uint8)]).view(of(dtype))


def raw(tensor: torch.Tensor, dtype: DType) -> np.ndarray:
    return np.frombuffer(bits(tensor), bits_dtype(dtype)).copy()


@pytest.mark.parametrize("src", FLOATS, ids=str)
@pytest.mark.parametrize("dst", FLOATS, ids=str)
def test_a_cast_is_torchs(src: DType, dst: DType) -> None:
    numbers = some(src)
    wanted = numbers if src == dst else numbers.to(of(dst))
    found = cast(raw(numbers, src), src, dst)
    assert found.dtype == bits_dtype(dst)
    assert found.tobytes() == bits(wanted)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 3), (4, 1, 3)])
def test_a_cast_keeps_the_shape(shape: tuple[int, ...]) -> None:
    numbers = np.zeros(shape, np.uint16)
    for name in ("F32", "F16", "F64", "F8_E4M3"):
        assert cast(numbers, BY_NAME["BF16"], BY_NAME[name]).shape == shape


def test_a_cast_reads_strided_bits() -> None:
    numbers = torch.randn(6, 8)
    found = cast(
        raw(numbers, BY_NAME["F32"]).reshape(6, 8)[::2, 1::3], BY_NAME["F32"], BY_NAME["BF16"]
    )
    assert found.tobytes() == bits(numbers[::2, 1::3].to(torch.bfloat16))


@pytest.mark.parametrize("shift", [1.0, -1.0])
@pytest.mark.parametrize("name", ["BF16", "F16", "F32", "F64"])
def test_a_shift_is_added_in_single_precision_or_better(name: str, shift: float) -> None:
    dtype = BY_NAME[name]
    numbers = torch.randn(500).to(of(dtype))
    wide = numbers.double() if name == "F64" else numbers.float()
    found = cast(raw(numbers, dtype), dtype, dtype, shift)
    assert found.tobytes() == bits((wide + shift).to(of(dtype)))


def test_only_floating_elements_change_their_type() -> None:
    f32 = BY_NAME["F32"]
    for other in OTHERS:
        assert may_cast(other, other)
        assert not may_cast(f32, other)
        assert not may_cast(other, f32)
        with pytest.raises(UsageError, match="cannot be cast"):
            cast(np.zeros(2, bits_dtype(other)), other, f32)


@pytest.mark.parametrize(
    "dtype", [d for d in BY_NAME.values() if d.name not in ("C64", "F4")], ids=str
)
def test_bits_stand_for_the_numbers_that_torch_reads(dtype: DType) -> None:
    numbers = random_tensor((500,), of(dtype))
    found = as_float64(raw(numbers, dtype), dtype)
    assert np.array_equal(found, numbers.to(torch.float64).numpy(), equal_nan=True)
