"""Checkpoints of real FSDP2 x tensor-parallel processes, read whole; and ours, read by them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

import intarsia
from intarsia.format.torch_file.torch_zip import read_object
from tests.checkpoints import assert_same, read_hf
from tests.distributed.ranks import on_ranks
from tests.distributed.trainer import CONFIG, load, resume, run, save


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four ranks saved (`saved`), and the whole tensors that it should hold (`truth`)."""
    folder = tmp_path_factory.mktemp("trained")
    on_ranks(4, save, folder)
    return folder


def split(tensors: dict) -> tuple[dict, dict]:
    """Weights, and optimizer state."""
    state = {name: x for name, x in tensors.items() if name.startswith("optimizer.")}
    return {name: x for name, x in tensors.items() if name not in state}, state


def test_what_ranks_saved_becomes_hugging_face_with_its_optimizer(trained: Path) -> None:
    weights, state = split(load_file(trained / "truth.safetensors"))
    assert len(weights) == 21
    assert len(state) == 3 * len(weights)
    intarsia.convert(trained / "saved", trained / "hf", to="hf", config=CONFIG)
    assert_same(read_hf(trained / "hf"), weights)
    assert_same(load_file(trained / "hf" / "optimizer" / "model.safetensors"), state)
    assert intarsia.verify(trained / "saved", trained / "hf", config=CONFIG)


def test_one_rank_of_another_mesh_reads_its_shard(trained: Path) -> None:
    weights, _ = split(load_file(trained / "truth.safetensors"))
    with intarsia.open(trained / "saved", config=CONFIG) as opened:
        shard = opened.shard("tp=2,fsdp=3", rank=5)
    gate = "model.layers.0.mlp.gate_proj.weight"
    assert shard[gate].equal(weights[gate][35:42])
    down = "model.layers.1.mlp.down_proj.weight"
    assert shard[down].equal(weights[down][14:19, 21:])
    assert shard[f"optimizer.exp_avg.{gate}"].shape == (7, 19)


@pytest.mark.parametrize("mesh", ["tp=2,fsdp=3"])
def test_what_we_wrote_loads_into_such_ranks(trained: Path, mesh: str) -> None:
    intarsia.convert(trained / "saved", trained / "written", to="dcp", mesh=mesh, config=CONFIG)
    on_ranks(4, load, trained)
    truth = load_file(trained / "truth.safetensors")
    assert_same(load_file(trained / "loaded.safetensors"), truth)


def test_megatron_gets_moments_groups_and_step(trained: Path) -> None:
    intarsia.convert(
        trained / "saved", trained / "dist", to="torch_dist", mesh="tp=2", config=CONFIG
    )
    assert intarsia.verify(trained / "saved", trained / "dist", config=CONFIG)
    common = (trained / "dist" / "iter_0000001" / "common.pt").read_bytes()
    groups = read_object(common, "common.pt")["optimizer"]["optimizer"]["param_groups"]
    assert [group["wd_mult"] for group in groups] == [1.0, 0.0]
    for group in groups:
        assert (group["step"], group["lr"], group["betas"]) == (2, 0.01, (0.9, 0.999))
    intarsia.convert(trained / "dist", trained / "fsdp", to="fsdp_dtensor", mesh="fsdp=2")
    _, state = split(load_file(trained / "truth.safetensors"))
    with intarsia.open(trained / "fsdp", config=CONFIG) as arrived:
        assert_same({name: arrived[name][...] for name in state}, state)


@pytest.mark.slow
def test_training_goes_on_with_the_same_losses_through_two_other_formats(tmp_path: Path) -> None:
    on_ranks(4, run, tmp_path)
    intarsia.convert(tmp_path / "saved", tmp_path / "hf", to="hf", config=CONFIG)
    intarsia.convert(tmp_path / "hf", tmp_path / "fd", to="fsdp_dtensor", mesh="fsdp=2,tp=2")
    intarsia.convert(tmp_path / "fd", tmp_path / "resumable", to="dcp", mesh="fsdp=3")
    on_ranks(4, resume, tmp_path)
    losses = json.loads((tmp_path / "losses.json").read_text())
    resumed = json.loads((tmp_path / "resumed.json").read_text())
    assert losses[0] - losses[-1] > 0.05, "the model does not learn, so the test tells nothing"
    assert resumed == pytest.approx(losses[5:], abs=1e-6)
