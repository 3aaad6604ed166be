"""Of two element types: the same counts from both sides, and orders that rounding does not hide."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from tests.checkpoints import normal_tensor, write_hf
from tests.faults.statements import untrue

Tensors = dict[str, torch.Tensor]
ORDER = torch.randperm(33, generator=torch.Generator().manual_seed(2))


def told(folder: Path, a: Tensors, b: Tensors) -> list[list[tuple[str, int]]]:
    """The differences from A to B and from B to A, each of whose statements holds."""
    left, right = write_hf(folder / "a", a), write_hf(folder / "b", b)
    out = []
    for one, other, x, y in ((left, right, a, b), (right, left, b, a)):
        found = intarsia.verify(one, other)
        assert not untrue(x, y, found, None)
        out.append([(d.tensor, d.elements) for d in found.different])
    return out


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.float16, torch.bfloat16),
        (torch.float16, torch.float32),
        (torch.float8_e4m3fn, torch.float8_e5m2),
        (torch.float64, torch.bfloat16),
    ],
)
def test_as_many_elements_differ_from_both_sides(
    one: torch.dtype, other: torch.dtype, tmp_path: Path
) -> None:
    x = normal_tensor((24, 20), torch.float32, 1)
    x[0] *= 1e-6  # no normal number of fp16
    y = x.flip(0)
    y[::3] = x[::3]
    a, b = {"w": x.to(one)}, {"w": y.to(one).to(other)}
    forth, back = told(tmp_path, a, b)
    assert forth == back


def test_one_of_two_types_as_wide_may_be_the_other_rounded(tmp_path: Path) -> None:
    x = normal_tensor((24, 20), torch.bfloat16, 1) * 1e-6
    a, b = write_hf(tmp_path / "a", {"w": x}), write_hf(tmp_path / "b", {"w": x.half()})
    for left, right in ((a, b), (b, a)):
        (difference,) = intarsia.verify(left, right).different
        assert difference.kind == "rounded"
        assert "the numbers are equal except for rounding" in difference.diagnosis


def test_numbers_that_are_equal_in_other_bits_do_not_differ_beyond_rounding(tmp_path: Path) -> None:
    x = normal_tensor((4, 4), torch.bfloat16, 1).float()
    x[0, 0], x[0, 1] = 0.0, torch.nan
    y = x.bfloat16()
    y.view(torch.int16)[0, :2] = torch.tensor(
        [-0x8000, -0x40]
    )  # a zero, and NaN, of the other sign
    for one, other in (({"w": x}, {"w": y}), ({"w": y}, {"w": x})):
        folder = tmp_path / str(one["w"].dtype)
        found = intarsia.verify(write_hf(folder / "a", one), write_hf(folder / "b", other))
        assert [(d.kind, d.elements) for d in found.different] == [("dtype-changed", 0)]


@pytest.mark.parametrize(
    ("one", "other", "kind", "said"),
    [
        (torch.tensor([2**53 + 1, 5]), torch.tensor([2.0**53, 5], dtype=torch.float64),
         "rounded", "the numbers are equal except for rounding"),
        (torch.tensor([2**53, 5]), torch.tensor([2.0**53, 5], dtype=torch.float64),
         "dtype-changed", "the numbers are equal"),
        (torch.tensor([2**63 - 1, 5]), torch.tensor([2**63, 5], dtype=torch.uint64),
         "unexplained", "the numbers differ beyond rounding"),
    ],
)  # fmt: skip
def test_integers_that_double_precision_does_not_hold_are_not_called_equal(
    one: torch.Tensor, other: torch.Tensor, kind: str, said: str, tmp_path: Path
) -> None:
    a, b = write_hf(tmp_path / "a", {"w": one}), write_hf(tmp_path / "b", {"w": other})
    for left, right in ((a, b), (b, a)):
        (difference,) = intarsia.verify(left, right).different
        assert (difference.kind, said in difference.diagnosis) == (kind, True)
        assert difference.elements == (kind != "dtype-changed")


@pytest.mark.parametrize("layers", [[1, 0, 2], [1, 1, 2]])
def test_layers_in_each_other_s_place_are_counted_alike(layers: list[int], tmp_path: Path) -> None:
    at = "model.layers.{}.mlp.down_proj.weight"
    a = {at.format(k): normal_tensor((24, 32), torch.float16, k) for k in range(3)}
    b = {at.format(k): a[at.format(source)].bfloat16() for k, source in enumerate(layers)}
    forth, back = told(tmp_path, a, b)
    assert forth == back


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("other", [torch.bfloat16, torch.float16, torch.float64])
def test_an_order_of_rows_or_columns_is_counted_in_the_narrower_type(
    other: torch.dtype, axis: int, tmp_path: Path
) -> None:
    x = normal_tensor((33, 33), torch.float32, 1)
    a, b = {"w": x}, {"w": x.index_select(axis, ORDER).to(other)}
    told(tmp_path, a, b)
    (difference,) = intarsia.verify(tmp_path / "a", tmp_path / "b").different
    assert "in another order" in difference.diagnosis


def test_blocks_that_moved_are_counted_in_the_narrower_type(tmp_path: Path) -> None:
    x = normal_tensor((24, 32), torch.float32, 1)
    y = torch.cat([x[:2], x[:-2]])
    told(tmp_path, {"w": x}, {"w": y.bfloat16()})
