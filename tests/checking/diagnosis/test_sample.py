"""A tensor of which nearly all is one number, or that hardly differs, is searched as fast as any other."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypothesis import BitsOfPair
from intarsia.checking.diagnosis.search import BACKWARDS
from intarsia.checking.pair.comparison import Comparison
from intarsia.mesh import Box
from tests.checkpoints import write_hf

MOST_PASSES = 16
"""How often the whole of a tensor may be read for a diagnosis; half of it is to say where it differs."""

Numbers = dict[int, float]


def sparse(shape: tuple[int, ...], numbers: Numbers) -> torch.Tensor:
    x = torch.zeros(prod(shape))
    x[[*numbers]] = torch.tensor([*numbers.values()])
    return x.reshape(shape)


def compared(tmp_path: Path, a: torch.Tensor, b: torch.Tensor) -> Comparison:
    return intarsia.verify(*(write_hf(tmp_path / n, {"x": x}, None) for n, x in (("a", a), ("b", b))))  # fmt: skip


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The elements of every window that the search reads."""
    sizes = list[int]()
    window = Evidence.window

    def counted(self: Evidence, box: Box) -> BitsOfPair:
        sizes.append(box.size)
        return window(self, box)

    monkeypatch.setattr(Evidence, "window", counted)
    return sizes


@pytest.mark.parametrize("shape", [(512, 256), (256, 512), (1 << 17,), (32, 64, 64), (8192, 16)])
@pytest.mark.parametrize(
    "changed",
    [{65_001: 1.0}, {65_000 + k * k: k % 3 / (k + 1) for k in range(40)}],
    ids=["one", "some"],
)
@pytest.mark.one_in(10)
def test_a_tensor_of_zeros_is_not_read_for_every_hypothesis(
    tmp_path: Path, read: list[int], shape: tuple[int, ...], changed: Numbers
) -> None:
    kept = {15_000 * k + 11: 7.0 for k in range(8)}
    other = {at: number - at % 2 for at, number in changed.items()}
    for a, b in ((changed, other), (other, changed)):
        read.clear()
        report = compared(tmp_path, sparse(shape, a | kept), sparse(shape, b | kept))
        assert [f.kind for f in report.faults] == ["unexplained"]
        assert sum(read) <= MOST_PASSES * prod(shape)


def test_what_moved_is_found_among_zeros(tmp_path: Path) -> None:
    """Its few elements lie in none of the rows that every sample has."""
    held = {989 * k + k * k: float(k) for k in range(1, 118)}
    x = sparse((512, 256), held)
    for y, kind in (
        (x.view(-1).roll(3).view(512, 256), "shifted"),
        (x.T.reshape(512, 256), "transposed"),
    ):
        (fault,) = compared(tmp_path, x, y).faults
        assert fault.kind == kind


def test_rows_that_moved_are_found_among_zeros(tmp_path: Path) -> None:
    """Where the first of them was, there is nothing left."""
    x = torch.zeros(512, 256)
    x[[40, 41, 300, 430]] = torch.randn(4, 256, generator=torch.Generator().manual_seed(1))
    (fault,) = compared(tmp_path, x, x.roll(5, 0)).faults
    assert fault.text.startswith("rows from 40 on shifted by 5: explains 2,048 of 2,048")
    (fault,) = compared(tmp_path, x, x.roll(64, 0)).faults
    assert "explains 2,048 of 2,048" in fault.text
    assert not fault.text.startswith(BACKWARDS)


def test_what_was_lost_among_zeros_is_lost(tmp_path: Path) -> None:
    held = {989 * k + k * k: float(k) for k in range(1, 118)}
    lost = {at: x * (at % 3 > 0) for at, x in held.items()}
    (fault,) = compared(tmp_path, sparse((512, 256), held), sparse((512, 256), lost)).faults
    assert (fault.kind, "B is zero where A is not" in fault.text) == ("zero", True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [8, 64])
def test_a_flat_tensor_of_nearly_all_ones_that_was_shifted_is_called_so(
    tmp_path: Path, dtype: torch.dtype, count: int
) -> None:
    random = torch.Generator().manual_seed(1)
    x = torch.ones(1 << 15, dtype=dtype)
    x[torch.randperm(len(x), generator=random)[:count]] = torch.randn(count, generator=random).to(dtype)  # fmt: skip
    (fault,) = compared(tmp_path, x, x.roll(5)).faults
    assert fault.kind == "shifted"
    assert "by 5 elements" in fault.text
