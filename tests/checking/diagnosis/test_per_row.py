"""A bias is in the order of its matrix, however little it alone tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import intarsia
from tests.checkpoints import write_hf

Tensor = torch.Tensor
MATRIX, BIAS = "layers.0.attn.dense.weight", "layers.0.attn.dense.bias"
NORM = "layers.0.norm.weight"


def any_order(x: Tensor) -> Tensor:
    return x[torch.randperm(64, generator=torch.Generator().manual_seed(2))]


def two_rows(x: Tensor) -> Tensor:
    return torch.cat([x[:10], x[11:12], x[10:11], x[12:]])


@pytest.mark.parametrize("turned", [False, True], ids=["in B", "in A"])
@pytest.mark.parametrize(
    ("wrong", "kinds"),
    [
        (any_order, ["rows-permuted"]),
        (two_rows, ["rows-permuted"]),
        (lambda x: x.flip(0), ["rows-permuted"]),
        (lambda x: torch.cat([x[:32], x[:32]]), ["rank-duplicated"]),
        (lambda x: any_order(x).to(torch.float8_e4m3fn).to(x.dtype), ["rows-permuted", "rounded"]),
    ],
)
def test_a_bias_in_the_order_of_its_matrix_is_of_the_same_fault(
    tmp_path: Path, wrong: Callable[[Tensor], Tensor], kinds: list[str], turned: bool
) -> None:
    seed = torch.Generator().manual_seed(1)
    right = {n: torch.randn(64, 40, generator=seed).bfloat16() for n in (MATRIX, "other.weight")}
    right |= {n: torch.randn(64, generator=seed).bfloat16() for n in (BIAS, NORM)}
    held = right | {n: wrong(right[n]).contiguous() for n in (MATRIX, BIAS)}
    sides = (held, right) if turned else (right, held)
    a, b = (write_hf(tmp_path / name, x, None) for name, x in zip("ab", sides, strict=True))
    faults = intarsia.verify(a, b).faults
    assert [fault.kind for fault in faults] == kinds
    assert all({*fault.tensors} == {MATRIX, BIAS} for fault in faults)


def test_a_bias_in_another_order_than_its_matrix_keeps_its_own(tmp_path: Path) -> None:
    seed = torch.Generator().manual_seed(1)
    right = {MATRIX: torch.randn(64, 40, generator=seed), BIAS: torch.randn(64, generator=seed)}
    wrong = {MATRIX: two_rows(right[MATRIX]), BIAS: torch.cat(right[BIAS].chunk(4)[::-1])}
    a, b = write_hf(tmp_path / "a", right, None), write_hf(tmp_path / "b", wrong, None)
    found = {d.tensor: d.kind for d in intarsia.verify(a, b).different}
    assert found == {MATRIX: "rows-permuted", BIAS: "shards-permuted"}
