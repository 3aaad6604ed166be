"""What a diagnosis says holds from A to B, or it says that it goes from B to A."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.checking.pair.comparison import Comparison
from tests.checkpoints import llama_config, normal_tensor, write_hf
from tests.faults.random_checkpoints import FAMILIES, weights, write
from tests.faults.statements import untrue

NAME = "layers.0.w.weight"


def compared(folder: Path, x: torch.Tensor, y: torch.Tensor) -> Comparison:
    a, b = write_hf(folder / "a", {NAME: x}), write_hf(folder / "b", {NAME: y})
    found = intarsia.verify(a, b)
    assert not untrue({NAME: x}, {NAME: y}, found, None)
    return found


@pytest.fixture
def x() -> torch.Tensor:
    return normal_tensor((32, 20), torch.float32, 3)


def test_blocks_that_only_a_holds_twice_are_told_from_b_to_a(
    tmp_path: Path, x: torch.Tensor
) -> None:
    twice = torch.cat([x[:8], x[:8], x[16:24], x[:8]])
    (told,) = compared(tmp_path / "forth", x, twice).different
    assert told.diagnosis.startswith("of 4 blocks of 8 on axis 0, block 1 holds 0, 3 holds 0:")
    (told,) = compared(tmp_path / "back", twice, x).different
    assert told.diagnosis.startswith("A from B: of 4 blocks of 8 on axis 0, block 1 holds 0")


def test_a_list_of_blocks_that_is_cut_short_says_so(tmp_path: Path, x: torch.Tensor) -> None:
    (told,) = compared(tmp_path, x, torch.cat([x[2:], x[-2:]])).different
    assert "7 holds 8, …" in told.diagnosis or "shifted by -2" in told.diagnosis


def test_a_shift_counts_every_row_that_it_explains(tmp_path: Path) -> None:
    x = normal_tensor((18,), torch.float32, 3)
    y = torch.cat([torch.zeros(2), x[:-2]])
    (told,) = compared(tmp_path, x, y).different
    assert "the rest is unexplained" not in told.diagnosis


def test_a_file_is_named_only_where_every_tensor_differs_in_it_alone(tmp_path: Path) -> None:
    config = FAMILIES["tied"]
    tensors = weights(config, torch.float32, 0)
    held = {n: t.clone() for n, t in tensors.items()}
    for layer, part in ((0, slice(None)), (1, slice(16, None))):
        q = held[f"model.layers.{layer}.self_attn.q_proj.weight"]
        q[part] = normal_tensor(q[part].shape, torch.float32, 9 + layer)
    a = write(tmp_path / "a", tensors, config, "dcp", "tp=2")
    b = write(tmp_path / "b", held, config, "dcp", "tp=2")
    found = intarsia.verify(a, b)
    assert not untrue(tensors, held, found, config)


def test_unlike_element_types_are_counted_beyond_rounding(tmp_path: Path) -> None:
    x = normal_tensor((12, 10), torch.float32, 1)
    y = x.bfloat16()
    y[3, 4] += 2
    found = compared(tmp_path, x, y)
    assert [(d.elements, d.first) for d in found.different] == [(1, (3, 4))]
    assert [f.elements for f in found.faults] == [1]


def test_experts_are_permuted_on_a_side(tmp_path: Path) -> None:
    config = FAMILIES["experts"]
    tensors = weights(config, torch.float32, 0)
    turn = {0: 1, 1: 2, 2: 0}
    held = dict(tensors)
    for name in tensors:
        for to, source in turn.items():
            if f".experts.{to}." in name:
                held[name] = tensors[name.replace(f".experts.{to}.", f".experts.{source}.")]
    a = write(tmp_path / "a", tensors, config, "hf", "")
    b = write(tmp_path / "b", held, config, "hf", "")
    (fault,) = intarsia.verify(a, b).faults
    assert fault.text.startswith(
        "experts permuted in B in 2 layers: 0 holds 1, 1 holds 2, 2 holds 0"
    )


def test_values_that_are_zero_in_every_layer_are_no_block_of_what_they_are_fused_into(
    tmp_path: Path,
) -> None:
    config = llama_config(hidden_size=24, head_dim=8, num_key_value_heads=2, vocab_size=48)
    tensors = weights(config, torch.float32, 0)
    values = [n for n in tensors if "v_proj" in n]
    for name in values:
        tensors[name].zero_()
    made = write(tmp_path / "all", tensors, config, "torch_dist", "tp=2")
    assert intarsia.verify(made).sound
    tensors[values[0]] = normal_tensor(tensors[values[0]].shape, torch.float32, 5)
    some = write(tmp_path / "some", tensors, config, "torch_dist", "tp=2")
    assert {f.kind for f in intarsia.verify(some).faults} == {"zero-block"}


@pytest.mark.parametrize("function", [torch.sin, torch.cos])
def test_a_rotary_table_may_repeat_its_columns(tmp_path: Path, function: object) -> None:
    rates = 10_000.0 ** -(torch.arange(16) / 16)
    angles = torch.arange(64)[:, None] * rates
    table = function(torch.cat([angles, angles], 1))  # type: ignore[operator]
    assert intarsia.verify(write_hf(tmp_path / "table", {"cos_cached": table})).sound
    twice = normal_tensor((64, 16), torch.float32, 2).repeat(1, 2)
    (fault,) = intarsia.verify(write_hf(tmp_path / "weight", {"w": twice})).faults
    assert fault.kind == "shards-repeated"


def test_other_experts_that_moved_are_no_equal_ones(tmp_path: Path) -> None:
    config = FAMILIES["experts"]
    tensors = weights(config, torch.float32, 0)
    held = {}
    for name in tensors:
        twin = name.replace("layers.0.", "layers.9.").replace("layers.1.", "layers.0.")
        held[name] = tensors[twin.replace("layers.9.", "layers.1.")].clone()
        if ".experts.0." in name:
            held[name].zero_()
    a = write(tmp_path / "a", tensors, config, "hf", "")
    b = write(tmp_path / "b", held, config, "hf", "")
    found = intarsia.verify(a, b)
    assert not untrue(tensors, held, found, config)
    assert not [f for f in found.faults if "of the other experts none" in f.text]
