"""The numbers of short floating-point codes, as their bits and torch say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from intarsia.dtypes import BY_NAME
from intarsia.value.codes import OF_FOUR_BITS, numbers_of_codes


def test_codes_of_four_bits_are_a_sign_two_bits_of_exponent_and_one_of_fraction() -> None:
    for code, found in enumerate(OF_FOUR_BITS):
        sign, exponent, fraction = code >> 3, code >> 1 & 3, code & 1
        size = 2.0 ** (exponent - 1) * (1 + fraction / 2) if exponent else fraction / 2
        assert found == (-size if sign else size)
        assert np.signbit(found) == sign


@pytest.mark.parametrize("name", [n for n in BY_NAME if n.startswith("F8")])
def test_codes_of_eight_bits_are_those_of_torch(name: str) -> None:
    dtype = BY_NAME[name]
    held = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype.torch))
    assert np.array_equal(numbers_of_codes(dtype), held.double().numpy(), equal_nan=True)
