"""Values out of a pickle as plain ones, which can be written again."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch

from intarsia.format.torch_file.plain import _KINDS, DROPPED, plain
from intarsia.format.torch_file.torch_zip import read_object


def plainly(value: Any) -> Any:
    held = io.BytesIO()
    torch.save(value, held)
    return plain(read_object(held.getvalue(), "here"))


@pytest.mark.parametrize("kind", [*_KINDS])
def test_a_number_of_numpy_is_that_number(kind: str) -> None:
    number = np.dtype(kind).type(1.1)
    found = plainly({"lr": number, "betas": (number, 0.5)})
    assert found == {"lr": number.item(), "betas": (number.item(), 0.5)}
    assert type(found["lr"]) is type(number.item())


@pytest.mark.parametrize(
    "value", [np.complex64(1j), np.datetime64("2026-01-01"), np.ones(1), torch.ones(2)]
)
def test_what_is_no_number_of_python_is_none(value: Any) -> None:
    assert plainly(value) is DROPPED
    assert plainly({"x": value, "y": 1}) == {"y": 1}
