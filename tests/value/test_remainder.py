"""Main weights are joined from their halves, as TransformerEngine's kernel joins them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intarsia.dtypes import BY_NAME
from intarsia.errors import FormatError
from intarsia.value import PLAIN, Change, Remainder, Shift, Window
from intarsia.value.bits import as_float64
from tests.format.megatron.optimizer.halves import cut, join

BF16, F32, F64, I16 = (BY_NAME[name] for name in ("BF16", "F32", "F64", "I16"))


@pytest.fixture
def mains() -> torch.Tensor:
    """Every lower half under some upper ones, of either sign, also where rounding goes to the next power of two."""
    lower = torch.arange(1 << 16, dtype=torch.int32)
    upper = torch.tensor([0x3F7F, 0x3F80, -0x4081, 0, 0x0080, -0x8000], dtype=torch.int32)
    return ((upper[:, None] << 16) | lower).view(torch.float32).reshape(-1)


def window(weight: torch.Tensor, lower: torch.Tensor, stored: str) -> Window:
    halves = lower.numpy().view("u2") if stored == "I16" else lower.float().numpy().view("u4")
    part = Window(weight.view(torch.int16).numpy().view("u2"), BF16)
    return Window(halves, BY_NAME[stored], {"w": part})


@pytest.mark.parametrize("stored", ["I16", "F32"])
def test_halves_are_joined_to_the_bit(stored: str, mains: torch.Tensor) -> None:
    weight, lower = cut(mains)
    assert torch.equal(join(weight, lower).view(torch.int32), mains.view(torch.int32))
    held, wanted = window(weight, lower, stored), mains.numpy().view("u4")
    value = Remainder("w")
    assert value.number_type(held.dtype) == F32
    assert np.array_equal(value.decode(held, F32), wanted)
    change = Change(held.dtype, F32, value, PLAIN)
    assert not change.is_none
    assert np.array_equal(change.of(held), wanted)
    before, after = change.compared(held, wanted)
    assert np.array_equal(before, after)


def test_a_norm_that_is_centred_on_zero_stays_so_without_arithmetic() -> None:
    mains = torch.linspace(-0.01, 0.013, 999)
    held, value = window(*cut(mains), "I16"), Remainder("w", Shift(-1.0))
    assert value.as_target == Shift(-1.0)
    kept = Change(I16, F32, value, Shift(-1.0)).of(held)
    assert np.array_equal(kept, mains.numpy().view("u4"))
    plain = Change(I16, F32, value, PLAIN).of(held)
    assert np.array_equal(plain.view("f4"), (mains + 1).numpy())
    assert np.array_equal(value.numbers(held), mains.double().numpy() + 1)
    assert np.array_equal(as_float64(value.decode(held, F64), F64), (mains + 1).double().numpy())


@pytest.mark.parametrize("found", [0.5, 32768.0, -40000.0, float("nan"), float("inf")])
def test_a_number_that_is_no_half_of_another_is_refused(found: float) -> None:
    held = window(*cut(torch.linspace(-1, 1, 5)), "F32")
    held.bits.view("f4")[3] = found
    with pytest.raises(FormatError, match=r"bf16 `w` lacks .* 1 of 5 are not: the first is"):
        Remainder("w").decode(held, F32)
