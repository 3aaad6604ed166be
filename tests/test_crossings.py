"""Checkpoints that pass through several formats and meshes, optimizer state included."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import intarsia
from tests.family.configs import CASES
from tests.family.models import save
from tests.fixtures import fixture

ROUTES = {
    "fd_dense_tp2_fsdp2": (
        ("fsdp_dtensor", "fsdp=4"),
        ("dcp", "fsdp=2,replicate=2"),
        ("torch_dist", "tp=2,pp=2"),
        ("hf", ""),
        ("fsdp_dtensor", "tp=2"),
        ("torch_dist", "tp=4"),
    ),
    "fd_moe_ep2_fsdp2": (
        ("torch_dist", "tp=2,ep=2"),
        ("fsdp_dtensor", "ep=4"),
        ("dcp", "ep=2,fsdp=4"),
        ("hf", ""),
        ("fsdp_dtensor", "ep=2,fsdp=2"),
    ),
    "fd_gdn_fsdp2_split": (
        ("dcp", "tp=2,fsdp=3"),
        ("torch_dist", "tp=2"),
        ("fsdp_dtensor", "fsdp=2"),
    ),
}
"""Where each checkpoint goes, one step after another."""


@pytest.mark.parametrize(
    "case",
    [
        "fd_gdn_fsdp2_split",
        pytest.param("fd_dense_tp2_fsdp2", marks=pytest.mark.slow),
        pytest.param("fd_moe_ep2_fsdp2", marks=pytest.mark.slow),
    ],
)
def test_nothing_of_a_trained_model_is_lost_on_the_way(case: str, tmp_path: Path) -> None:
    start = fixture("megatron", case)
    config = start / "hf_truth" / "config.json"
    truth = load_file(start / "hf_truth_optimizer.safetensors")
    here = start
    for k, (to, mesh) in enumerate(ROUTES[case]):
        there = tmp_path / f"{k}-{to}"
        intarsia.convert(here, there, to=to, mesh=mesh, config=config if k == 0 else None)
        same = intarsia.verify(start, there, config=config)
        assert same, (to, *same.different[:1], *same.only_in_a[:1], *same.only_in_b[:1])
        here = there
    with intarsia.open(here, config=config) as arrived:
        for name, x in truth.items():
            assert torch.equal(arrived[name][...], x), name


@pytest.mark.parametrize(
    "name", [name for name, config in CASES.items() if "text_config" in config]
)
@pytest.mark.one_in(9)
def test_a_vision_tower_passes_by_name(name: str, tmp_path: Path) -> None:
    save(CASES[name], tmp_path / "hub")
    truth = load_file(tmp_path / "hub" / "model.safetensors")
    for key in [k for k in truth if k.endswith("linear_attn.norm.weight")]:
        truth[key] = truth[key].clamp(0.5, 2)
    save_file(truth, tmp_path / "hub" / "model.safetensors", {"format": "pt"})
    intarsia.convert(tmp_path / "hub", tmp_path / "megatron", to="torch_dist", mesh="tp=2,pp=2")
    assert intarsia.verify(tmp_path / "hub", tmp_path / "megatron")
    intarsia.convert(tmp_path / "megatron", tmp_path / "back", to="hf")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == truth.keys()
    assert all(torch.equal(back[key], x) for key, x in truth.items())


@pytest.mark.parametrize(("norm", "lost"), [(0.7, 0), (0.1, 8)])
def test_a_norm_that_a_shift_rounds_is_named(norm: float, lost: int, tmp_path: Path) -> None:
    save(CASES["qwen3_next"], tmp_path / "hub")
    tensors = load_file(tmp_path / "hub" / "model.safetensors")
    first = "model.layers.0.linear_attn.norm.weight"
    for key in [k for k in tensors if k.endswith("linear_attn.norm.weight")]:
        tensors[key] = torch.full_like(tensors[key], norm if key == first else 1.0)
    save_file(tensors, tmp_path / "hub" / "model.safetensors", {"format": "pt"})
    report = intarsia.convert(tmp_path / "hub", tmp_path / "megatron", to="torch_dist")
    rounded = [remark for remark in report.remarks if "rounded" in remark]
    if lost:
        assert f"{lost} elements of 1 norms were rounded" in rounded[0]
        assert rounded[0] in report.as_json()["notes"]
        assert [
            d.tensor for d in intarsia.verify(tmp_path / "hub", tmp_path / "megatron").different
        ] == [first]
    else:
        assert not rounded
        assert intarsia.verify(tmp_path / "hub", tmp_path / "megatron")
