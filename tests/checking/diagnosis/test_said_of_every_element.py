"""What is said of every element holds of every one; of nearly all, with its count."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.checking.pair.comparison import Comparison
from tests.checkpoints import normal_tensor, write_hf
from tests.faults.random_checkpoints import FAMILIES, weights
from tests.faults.statements import untrue

Tensors = dict[str, torch.Tensor]


def compared(folder: Path, a: Tensors, b: Tensors, files: int = 1) -> Comparison:
    left, right = write_hf(folder / "a", a, None, files), write_hf(folder / "b", b, None, files)
    found = intarsia.verify(left, right)
    assert not untrue(a, b, found, None)
    return found


@pytest.mark.parametrize("rest", [float("nan"), 7.0])
@pytest.mark.parametrize("filled", [0.0, 2.0])
@pytest.mark.parametrize("rows", [16, 1024])
def test_one_number_all_over_a_tensor_is_not_said_of_one_that_has_another(
    rows: int, filled: float, rest: float, tmp_path: Path
) -> None:
    x = normal_tensor((rows, 24), torch.float32)
    y = torch.full_like(x, filled)
    all_over = "is all zeros" if not filled else "every element of"
    (told,) = compared(tmp_path / "all", {"w": x}, {"w": y}).different
    assert all_over in told.diagnosis
    assert "nearly" not in told.diagnosis
    y[rows // 2 + 1, 3] = rest
    n = x.numel()
    for a, b in ((x, y), (y, x)):
        (told,) = compared(tmp_path / f"{a is x}", {"w": a}, {"w": b}).different
        if filled and rows == 16:  # its own sample, which holds more than one number
            assert all_over not in told.diagnosis
        else:
            assert f"explains {n - 1:,} of {n:,} differing elements" in told.diagnosis
            assert told.diagnosis.startswith("nearly ")


def test_layers_are_zero_only_where_each_of_their_matrices_is(tmp_path: Path) -> None:
    config = FAMILIES["dense"]
    a = weights(config, torch.float32, 0)
    b = {n: x.clone() for n, x in a.items()}
    lost = [n for n, x in b.items() if "layers.1." in n and x.ndim > 1]
    for name in lost:
        b[name].zero_()
    assert "every matrix" in compared(tmp_path / "zero", a, b).faults[0].text
    b[lost[2]][3, 3] = 1
    found = compared(tmp_path / "nearly", a, b)
    assert not any("every matrix" in fault.text for fault in found.faults)
    assert any("nearly all of B is zero" in fault.text for fault in found.faults)


@pytest.mark.parametrize("turned", [False, True], ids=["in B", "in A"])
@pytest.mark.parametrize("kept", [1, 3, 12])
@pytest.mark.parametrize("lost", [0.0, float("nan")], ids=["zero", "NaN"])
@pytest.mark.one_in(3)
def test_layers_are_lost_only_where_no_matrix_of_them_keeps_a_part(
    lost: float, kept: int, turned: bool, tmp_path: Path
) -> None:
    a = weights(FAMILIES["dense"], torch.float32, 0)
    b = {n: x.clone() for n, x in a.items()}
    names = [n for n, x in b.items() if "layers.1." in n and x.ndim > 1]
    for name in names:
        b[name].fill_(lost)
    sides = (b, a) if turned else (a, b)
    assert "every matrix" in compared(tmp_path / "whole", *sides).faults[0].text
    for k in range(kept):  # a part that both sides have alike
        row = 5 * (k + 1) % 16
        b[names[2]][row] = a[names[2]][row]
    found = compared(tmp_path / "part", *sides)
    assert not any("every matrix" in fault.text for fault in found.faults)
    told = next(x for x in found.different if x.tensor == names[2])
    if kept == 1:
        assert " where it differs" in told.diagnosis


def test_a_file_s_tensors_are_zero_only_where_each_of_them_is(tmp_path: Path) -> None:
    a = {f"w{k}": normal_tensor((40, 24), torch.float32, k) for k in range(4)}
    b = {n: x.clone() for n, x in a.items()}
    for name in ("w0", "w2"):
        b[name].zero_()
    assert "are zero" in compared(tmp_path / "zero", a, b, files=2).faults[0].text
    b["w2"][3, 3] = 1
    found = compared(tmp_path / "nearly", a, b, files=2)
    assert not any("are zero" in fault.text for fault in found.faults)


def test_small_numbers_that_were_lost_are_not_rounded_ones(tmp_path: Path) -> None:
    """A second moment is below what 8 bits hold, so that rounding would make zeros of it too."""
    x = normal_tensor((64, 16), torch.float32) ** 2 * 1e-4
    y = x.clone()
    y[40:] = 0
    for a, b in ((x, y), (y, x)):
        (fault,) = compared(tmp_path / f"{a is x}", {"w": a}, {"w": b}).faults
        assert fault.kind == "zero"
    x[:, :4] += 1
    (fault,) = compared(tmp_path / "r", {"w": x}, {"w": x.to(torch.float8_e4m3fn).float()}).faults
    assert fault.kind == "rounded"


def test_a_column_that_stayed_in_place_but_for_one_zero_is_not_said_to_be_explained(
    tmp_path: Path,
) -> None:
    a = normal_tensor((18, 14), torch.float64)
    b = a.clone()
    b[:, :7] = a[:, :7].flip(1)
    b[0, 13] = 0
    (told,) = compared(tmp_path, {"w": a}, {"w": b}).different
    assert "explains 108 of 109 differing elements" in told.diagnosis
