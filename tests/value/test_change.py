"""What happens to elements between two files: nothing, a cast, or another way to store their numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intarsia.dtypes import BY_NAME, DType
from intarsia.value import PLAIN, Change, Shift, Value, Window
from intarsia.value.bits import bits_dtype
from tests.checkpoints import bits

BF16, F32, F64 = BY_NAME["BF16"], BY_NAME["F32"], BY_NAME["F64"]
UP, DOWN = Shift(1.0), Shift(-1.0)


@pytest.mark.parametrize(("change", "words"), [
    (Change(F32, F32), "is_none keeps_value is_lossless recentres"), (Change(BF16, F32), "keeps_value is_lossless"),
    (Change(F32, BF16), "keeps_value"), (Change(F32, F32, UP, Shift(1.0)), "is_none keeps_value is_lossless recentres"),
    (Change(F32, F32, UP, DOWN), "recentres"), (Change(F32, F32, UP), "recentres"), (Change(BF16, F32, PLAIN, UP), ""),
])  # fmt: skip
def test_what_a_change_does_is_known_before_it_is_done(change: Change, words: str) -> None:
    every = ("is_none", "keeps_value", "is_lossless", "recentres")
    assert [word for word in every if getattr(change, word)] == words.split()
    assert change.back.back == change


@pytest.mark.parametrize(("dtype", "src", "dst", "by"), [(F64, UP, DOWN, -2.0), (F32, UP, DOWN, -2.0), (F32, UP, PLAIN, -1.0), (F64, PLAIN, DOWN, -1.0)])  # fmt: skip
def test_numbers_stay_what_they_are_where_both_store_them_otherwise(
    dtype: DType, src: Value, dst: Value, by: float
) -> None:
    held = torch.tensor([1.5, 1 + 2**-20, 1 + 2**-40, 3.0], dtype=getattr(torch, dtype.torch))
    window = Window(np.frombuffer(bits(held), bits_dtype(dtype)).copy(), dtype)
    assert Change(dtype, dtype, src, dst).of(window).tobytes() == bits(held + by)


def test_a_norm_that_is_rounded_is_rounded_before_it_is_centred_on_one_again() -> None:
    """As training does it: 1.001 is 1 in bf16."""
    held = torch.tensor([1.001, 2.0])
    window = Window(np.frombuffer(bits(held), np.uint32).copy(), F32)
    assert Change(F32, BF16, UP, PLAIN).of(window).tobytes() == bits(
        torch.tensor([0.0, 1.0]).bfloat16()
    )


def test_small_numbers_that_are_only_cast_are_compared_as_they_are_stored() -> None:
    held = torch.tensor([1e-30])
    window = Window(np.frombuffer(bits(held), np.uint32).copy(), F32)
    change = Change(F32, BF16, UP, UP)
    wanted, found = change.compared(window, change.of(window))
    assert wanted.tolist() == held.tolist()
    assert found.tolist() == held.bfloat16().tolist()


def test_values_that_are_neither_plain_nor_shifted_recentre_nothing() -> None:
    class Doubled(Shift):
        recentres = False

    assert not Change(F32, F32, Doubled(1.0), PLAIN).recentres
    assert not Change(F32, F32, PLAIN, Doubled(1.0)).recentres
