"""Zeros in other places are no rows that moved; rows that moved among zeros are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.checking.fault import Fault
from tests.checkpoints import normal_tensor, write_hf

SHAPE = (96, 64)


def zero_rows(*rows: int) -> torch.Tensor:
    x = normal_tensor(SHAPE, torch.bfloat16)
    x[list(rows)] = 0
    return x


def faults(tmp_path: Path, a: torch.Tensor, b: torch.Tensor) -> list[Fault]:
    paths = (write_hf(tmp_path / n, {"x": x}, None) for n, x in (("a", a), ("b", b)))
    return [*intarsia.verify(*paths).faults]


@pytest.mark.parametrize(
    ("of_a", "of_b", "text"),
    [
        (range(8, 12), range(20, 24), "A in rows 8 to 11 and B in rows 20 to 23"),
        (range(12), range(84, 96), "A in rows 0 to 11 and B in rows 84 to 95"),
        (range(8, 12), range(10, 14), "A in rows 8 to 9 and B in rows 12 to 13"),
        ([8], range(40, 60, 2), "A in rows 8 and B in 10 rows"),
    ],
)
def test_zeros_that_lie_elsewhere_are_named_on_both_sides(
    tmp_path: Path, of_a: range, of_b: range, text: str
) -> None:
    (fault,) = faults(tmp_path, zero_rows(*of_a), zero_rows(*of_b))
    assert fault.kind == "zeros-moved"
    assert f"each side is zero where the other is not: {text}: explains" in fault.text


def test_zeros_of_a_vector_are_elements(tmp_path: Path) -> None:
    x = normal_tensor((6144,), torch.float32)
    a, b = x.clone(), x.clone()
    a[100:120] = 0
    b[300:320] = 0
    (fault,) = faults(tmp_path, a, b)
    assert "A in elements 100 to 119 and B in elements 300 to 319" in fault.text


def test_rows_that_took_the_place_of_zeros_moved(tmp_path: Path) -> None:
    a = zero_rows(*range(8, 12))
    b = a.clone()
    b[8:12], b[40:44] = a[40:44], a[8:12]
    (fault,) = faults(tmp_path, a, b)
    assert fault.kind == "shards-permuted"


def test_a_few_numbers_among_zeros_are_what_moved(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(1)
    a, b = torch.zeros(SHAPE), torch.zeros(SHAPE)
    a[3:5] = torch.randn(2, 64, generator=random)
    b[50:52] = torch.randn(2, 64, generator=random)
    assert "zeros-moved" not in {fault.kind for fault in faults(tmp_path, a, b)}


def test_numbers_that_differ_where_neither_is_zero_are_not_left_out(tmp_path: Path) -> None:
    a, b = zero_rows(*range(8, 12)), zero_rows(*range(20, 24))
    b[70, 3] += 1
    assert "zeros-moved" not in {fault.kind for fault in faults(tmp_path, a, b)}
