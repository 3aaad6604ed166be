"""Norms that are stored with a constant added."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intarsia.dtypes import BY_NAME, DType
from intarsia.value import PLAIN, Change, Shift, Window, shifted
from intarsia.value.bits import bits_dtype
from tests.checkpoints import bits

BF16, F32 = BY_NAME["BF16"], BY_NAME["F32"]


def window(numbers: torch.Tensor, dtype: DType) -> Window:
    return Window(np.frombuffer(bits(numbers), bits_dtype(dtype)).copy(), dtype)


@pytest.mark.parametrize("by", [1.0, -1.0])
@pytest.mark.parametrize("name", ["BF16", "F16", "F32", "F64"])
def test_a_shift_is_added_in_single_precision_or_better(name: str, by: float) -> None:
    dtype = BY_NAME[name]
    of = getattr(torch, dtype.torch)
    numbers = torch.randn(500).to(of)
    wide = numbers.double() if name == "F64" else numbers.float()
    assert Shift(by).encode(window(numbers, dtype), dtype).tobytes() == bits((wide + by).to(of))
    assert Shift(by).decode(window(numbers, dtype), dtype).tobytes() == bits((wide - by).to(of))


def test_a_shifted_number_is_rounded_to_a_narrower_type_before_and_after() -> None:
    numbers = torch.randn(500)
    found = Shift(1.0).encode(window(numbers, F32), BF16)
    assert found.tobytes() == bits((numbers.bfloat16().float() + 1).bfloat16())


def test_a_shift_by_nothing_is_plain() -> None:
    assert shifted(0.0) is PLAIN
    assert shifted(-1.0) == Shift(-1.0) != Shift(1.0)


def test_tensors_that_are_shifted_alike_move_as_bits() -> None:
    assert Change(BF16, BF16, Shift(1.0), Shift(1.0)).is_none
    assert not Change(BF16, BF16, Shift(1.0), PLAIN).is_none
    numbers = torch.randn(500)
    found = Change(F32, BF16, Shift(1.0), Shift(1.0)).of(window(numbers, F32))
    assert found.tobytes() == bits(numbers.bfloat16())


def test_what_a_change_would_hold_unrounded_is_compared_with_what_it_holds() -> None:
    numbers = torch.tensor([0.5, 1e-30])
    change = Change(F32, BF16, PLAIN, Shift(1.0))
    held = window(numbers, F32)
    wanted, found = change.compared(held, change.of(held))
    assert wanted.tolist() == [1.5, 1.0]
    assert found.tolist() == [1.5, 1.0]
