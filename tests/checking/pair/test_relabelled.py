"""Tensors whose bytes are the same and whose element type is not, and types that no cast leads between."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import intarsia
from tests.checkpoints import normal_tensor, write_hf
from tests.faults.statements import untrue

ROLES = ("gate_proj", "up_proj")
NAMES = [f"model.layers.{k}.mlp.{role}.weight" for k in range(2) for role in ROLES]
SHAPE = (40, 24)


def weights(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: normal_tensor(SHAPE, dtype, k) for k, name in enumerate(NAMES)}


@pytest.mark.parametrize(
    ("dtype", "other"),
    [
        (torch.bfloat16, torch.float16),
        (torch.float16, torch.bfloat16),
        (torch.bfloat16, torch.int16),
        (torch.float32, torch.int32),
        (torch.float64, torch.int64),
    ],
)
def test_the_same_bits_under_another_type_are_called_that(
    tmp_path: Path, dtype: torch.dtype, other: torch.dtype
) -> None:
    held = weights(dtype)
    called = held | {NAMES[0]: held[NAMES[0]].view(other)}
    a, b = write_hf(tmp_path / "a", held), write_hf(tmp_path / "b", called)
    for left, right in ((a, b), (b, a)):
        found = intarsia.verify(left, right)
        assert [(d.tensor, d.kind) for d in found.different] == [(NAMES[0], "dtype-relabelled")]
        (fault,) = found.faults
        assert "the bits are the same" in fault.text


@pytest.mark.parametrize("others", [torch.bfloat16, torch.float16])
def test_zeros_of_a_layer_under_another_type_are_of_the_same_fault(
    tmp_path: Path, others: torch.dtype
) -> None:
    """Unless the other layers were cast to that type: there zeros may have been, too."""
    held = weights(torch.bfloat16)
    held |= {f"model.layers.{k}.mlp.gate_proj.bias": torch.zeros(40).bfloat16() for k in range(2)}
    first = {n: x.view(torch.float16) for n, x in held.items() if "layers.0." in n}
    rest = {n: x.to(others) for n, x in held.items() if "layers.1." in n}
    a, b = write_hf(tmp_path / "a", held), write_hf(tmp_path / "b", first | rest)
    faults = {f.kind: {*f.tensors} for f in intarsia.verify(a, b).faults}
    if others == torch.bfloat16:
        assert faults == {"dtype-relabelled": {*first}}
    else:
        assert faults["dtype-relabelled"] == {*NAMES[:2]}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_side_and_the_file_that_name_the_wrong_type_are_named(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    held = {name: x * 0.02 for name, x in weights(dtype).items()}
    held |= {f"model.layers.{k}.input_layernorm.weight": torch.ones(24, dtype=dtype) for k in range(2)}  # fmt: skip
    other = torch.float16 if dtype == torch.bfloat16 else torch.bfloat16
    paths = []
    for side in "ab":
        paths.append(tmp_path / side)
        paths[-1].mkdir()
        for k in range(2):
            part = {n: x for n, x in held.items() if f"layers.{k}." in n}
            if side == "b" and k:
                part = {n: x.view(other) for n, x in part.items()}
            save_file(part, paths[-1] / f"model-{k + 1:05}-of-00002.safetensors")
    a, b = paths
    held_by = {a: held, b: {n: x.view(other) if "layers.1." in n else x for n, x in held.items()}}
    for left, right, wrong in ((a, b, "B"), (b, a, "A")):
        found = intarsia.verify(left, right)
        assert not untrue(held_by[left], held_by[right], found, None, damaged=wrong)
        assert untrue(held_by[left], held_by[right], found, None, damaged="AB".strip(wrong))
        (fault,) = found.faults
        assert (fault.kind, len(fault.tensors)) == ("dtype-relabelled", 3)
        assert f"the bits are the same: {wrong} names the wrong type" in fault.text
        assert "all of it in model-00002-of-00002.safetensors" in fault.text


@pytest.mark.parametrize("name", ["up_proj.weight", "up_proj.weight_scale"])
def test_where_either_type_may_be_right_no_side_is_named(tmp_path: Path, name: str) -> None:
    x = normal_tensor((32, 32), torch.bfloat16) * 0.02
    if not name.endswith("scale"):
        x[0, 0] = 1e-30
    a = write_hf(tmp_path / "a", {name: x})
    (fault,) = intarsia.verify(a, write_hf(tmp_path / "b", {name: x.view(torch.float16)})).faults
    assert "one side names the wrong type" in fault.text


@pytest.mark.parametrize("row", [0, -1])
@pytest.mark.one_in(2)
def test_one_other_bit_in_one_of_many_windows_is_more_than_another_type(
    tmp_path: Path, row: int
) -> None:
    held = normal_tensor((3000, 1000), torch.bfloat16, 1)
    changed = held.view(torch.int16).clone()
    a = write_hf(tmp_path / "a", {"w": held})
    b = write_hf(tmp_path / "b", {"w": changed.view(torch.float16)})
    assert intarsia.verify(a, b, memory="16MiB").different[0].kind == "dtype-relabelled"
    changed[row, 7] ^= 1
    c = write_hf(tmp_path / "c", {"w": changed.view(torch.float16)})
    assert intarsia.verify(a, c, memory="16MiB").different[0].kind == "unexplained"


def test_integers_beside_numbers_of_one_group_are_compared(tmp_path: Path) -> None:
    held = weights(torch.float32)
    changed = held | {NAMES[0]: held[NAMES[0]].view(torch.int32).flip(0).contiguous()}
    a, b = write_hf(tmp_path / "a", held), write_hf(tmp_path / "b", changed)
    for left, right in ((a, b), (b, a)):
        found = intarsia.verify(left, right)
        assert [d.tensor for d in found.different] == [NAMES[0]]
