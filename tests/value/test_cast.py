"""Casts are torch's, bit by bit, for every pair of floating element types."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from intarsia.dtypes import BY_NAME, DType
from intarsia.errors import UsageError
from intarsia.value import cast as casting
from intarsia.value import numpy_cast, shifted
from intarsia.value import shift as shifting
from intarsia.value.base import Window
from intarsia.value.bits import as_float64, bits_dtype
from intarsia.value.cast import cast, may_cast
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


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d.itemsize == 1], ids=str)
def test_each_code_of_a_byte_stands_for_the_number_that_torch_reads(dtype: DType) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    found, want = as_float64(codes.numpy(), dtype), codes.view(of(dtype)).double().numpy()
    assert np.array_equal(found, want, equal_nan=True)
    told = ~np.isnan(want)
    assert np.array_equal(np.signbit(found[told]), np.signbit(want[told])), "a zero has its sign"


@pytest.mark.parametrize("shift", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("dst", FLOATS, ids=str)
def test_a_cast_without_torch_gives_torchs_numbers(dst: DType, shift: float, monkeypatch) -> None:
    """And a NaN where torch gives one."""
    for src in FLOATS:
        numbers = raw(some(src), src)
        want = shifted(shift).encode(Window(numbers, src), dst)
        with monkeypatch.context() as patch:
            for module in (casting, shifting):
                patch.setattr(module, "has_torch", lambda: False)
            patch.setattr(numpy_cast, "_AT_ONCE", 1000)
            found = shifted(shift).encode(Window(numbers, src), dst)
            none = Window(numbers[:0].reshape(2, 0), src)
            assert shifted(shift).encode(none, dst).shape == (2, 0)
        nan = np.isnan(as_float64(want, dst))
        # What eight bits cannot hold is a NaN before torch 2.13; no conversion lets it through.
        told = ~nan | np.isnan(as_float64(numbers, src))
        assert np.array_equal(nan[told], np.isnan(as_float64(found, dst))[told])
        assert np.array_equal(found[~nan], want[~nan]), src
        assert found.dtype == bits_dtype(dst)


def test_a_little_is_rounded_without_importing_torch() -> None:
    words = """
import sys, numpy as np
from intarsia.dtypes import BY_NAME
from intarsia.value.cast import cast
assert cast(np.array([0x3F80_8000, 0x3F81_8000], np.uint32), BY_NAME["F32"], BY_NAME["BF16"]).tolist() == [0x3F80, 0x3F82]
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", words], check=True)
