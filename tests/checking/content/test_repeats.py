"""Copies among experts and layers, of weights and of their optimizer state."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import intarsia
from tests.faults.sound import FORMATS, Tensors, convert, trained, weights, write

MOMENTS = ("optimizer.exp_avg.", "optimizer.exp_avg_sq.")


def made(tensors: Tensors, format: str, tmp_path: Path) -> Path:
    return convert(write(tensors, tmp_path / "hub"), format, tmp_path / "out")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.one_in(2)
def test_moments_of_one_rank_s_experts_saved_for_all_are_found(format: str, tmp_path: Path) -> None:
    tensors = trained(weights(2))
    for name in tensors:
        for e, source in ((2, 0), (3, 1)):
            if name.startswith(MOMENTS) and f".experts.{e}." in name:
                tensors[name] = tensors[name.replace(f".experts.{e}.", f".experts.{source}.")]
    (fault,) = intarsia.verify(made(clones(tensors), format, tmp_path)).faults
    assert fault.kind == "expert-blocks-repeated"
    assert "experts repeat every 2 in their moments" in fault.text
    assert all(name.startswith(MOMENTS) for name in fault.tensors)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.one_in(4)
def test_moments_of_a_layer_saved_for_another_are_found(format: str, tmp_path: Path) -> None:
    tensors = trained(weights(2))
    for name in tensors:
        if name.startswith(MOMENTS) and "layers.3." in name:
            tensors[name] = tensors[name.replace("layers.3.", "layers.1.")]
    faults = intarsia.verify(made(clones(tensors), format, tmp_path)).faults
    assert [fault.kind for fault in faults] == ["layers-repeated"]
    assert "layer 3 equals layer 1 in all" in faults[0].text
    assert faults[0].text.endswith("matrices of its moments")
    assert all(name.startswith(MOMENTS) for name in faults[0].tensors)


def test_experts_that_were_copied_with_their_state_are_one_fault(tmp_path: Path) -> None:
    tensors = trained(weights(2))
    for name in tensors:
        if ".experts.3." in name:
            tensors[name] = tensors[name.replace(".experts.3.", ".experts.0.")]
    (fault,) = intarsia.verify(made(clones(tensors), "hf", tmp_path)).faults
    assert (fault.kind, fault.where) == ("experts-repeated", "layers 0, 1, 2, 3")
    assert "experts 0 = 3 of a layer are equal" in fault.text


def clones(tensors: Tensors) -> Tensors:
    return {name: x.clone() for name, x in tensors.items()}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.one_in(4)
def test_a_number_that_is_none_is_named_by_its_expert(format: str, tmp_path: Path) -> None:
    """Though several experts, or q, k and v, lie in one stored tensor."""
    tensors = trained(weights(2))
    hurt = [f"model.layers.2.{x}.weight" for x in ("mlp.experts.3.up_proj", "self_attn.k_proj")]
    for name in hurt:
        tensors[name][1, 2] = tensors[f"optimizer.master.{name}"][1, 2] = float("inf")
    hub = write(tensors, tmp_path / "hub")
    report = intarsia.verify(convert(hub, format, tmp_path / "out", mesh=""))
    named = {name for fault in report.faults for name in fault.tensors}
    assert {fault.kind for fault in report.faults} == {"not-finite"}
    assert named - {f"optimizer.master.{name}" for name in hurt} == set(hurt)


def test_a_stack_of_experts_is_told_by_the_ones_that_are_hurt(tmp_path: Path) -> None:
    stack = torch.randn(6, 8, 8, generator=torch.Generator().manual_seed(0))
    stack[4, 2, 2] = float("nan")
    save_file({"layers.0.experts.down_proj": stack}, tmp_path / "model.safetensors")
    (fault,) = intarsia.verify(tmp_path).faults
    assert "model.safetensors" in fault.text
    stack[4] = stack[1]
    save_file({"layers.0.experts.down_proj": stack}, tmp_path / "model.safetensors")
    (fault,) = intarsia.verify(tmp_path).faults
    assert fault.text == "experts 1 = 4 of a layer are equal: layers.0.experts.down_proj"


@pytest.mark.parametrize("kind", ["experts-identical", "layers-repeated"])
def test_a_model_made_by_copying_is_noted_until_it_was_trained(kind: str, tmp_path: Path) -> None:
    """Upcycled from a dense model, or made deeper by repeating layers."""
    for trained_ in (False, True):
        tensors = trained(weights(4)) if trained_ else weights(4)
        for name in list(tensors):
            source = name.replace("layers.2.", "layers.0.").replace("layers.3.", "layers.1.")
            if kind == "experts-identical":
                source = name
                for e in (1, 2, 3):
                    source = source.replace(f".experts.{e}.", ".experts.0.")
            tensors[name] = tensors[source].clone()
        report = intarsia.verify(write(tensors, tmp_path / f"{trained_}"))
        if trained_:
            assert {fault.kind for fault in report.faults} == {kind}
        else:
            assert report.sound, report
            assert any("not trained since" in note for note in report.notes)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("other", ["exp_avg_sq", "master"])
@pytest.mark.one_in(4)
def test_a_first_moment_that_is_the_second_or_the_main_weight_is_found(
    format: str, other: str, tmp_path: Path
) -> None:
    tensors = trained(weights(2))
    first = MOMENTS[0]
    for name in [name for name in tensors if name.startswith(first) and "layers.1." in name]:
        tensors[name] = tensors[f"optimizer.{other}.{name.removeprefix(first)}"]
    (fault,) = intarsia.verify(made(clones(tensors), format, tmp_path)).faults
    assert fault.kind == "tensor-repeated"
    said = "the weight itself" if (other, format) == ("master", "fsdp_dtensor") else other
    assert f"exp_avg equals {said} in " in fault.text
    assert all(name.startswith(first) and "layers.1." in name for name in fault.tensors)


def test_masks_that_heads_have_alike_are_no_repeated_shards(tmp_path: Path) -> None:
    apart = (torch.arange(16)[:, None] - torch.arange(16)).float()
    slopes = torch.tensor([1e-5, 1e-6, 1e-7, 1e-8])[:, None, None]
    decay = torch.exp(-slopes * apart).tril()[None]
    name = "model.layers.3.self_attn.diagonal_decay"
    save_file({name: decay.bfloat16()}, tmp_path / "model.safetensors")
    assert intarsia.verify(tmp_path)
    mixed = decay[0, :1, torch.randperm(16, generator=torch.Generator().manual_seed(0))]
    save_file({name: mixed.repeat(4, 1, 1)[None].bfloat16()}, tmp_path / "model.safetensors")
    assert [fault.kind for fault in intarsia.verify(tmp_path).faults] == ["shards-repeated"]
