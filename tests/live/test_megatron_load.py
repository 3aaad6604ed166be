"""Checkpoints of any format into slices of parameters, each rank its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import intarsia
from intarsia.checkpoint import Checkpoint
from intarsia.errors import CoverageError, UsageError
from intarsia.format import registry as formats
from intarsia.live.megatron_load import load_parameters
from tests.checkpoints import write_hf
from tests.format.megatron.fsdp_dtensor.test_fsdp_dtensor import DENSE, LINEAR, weights
from tests.live.megatron_fsdp_cases import hf_with_optimizer, to_fsdp

FC1 = "module.module.decoder.layers.0.mlp.linear_fc1.weight"


class Parameter:
    """What a load sees of a Megatron-FSDP parameter on one tensor-parallel rank."""

    def __init__(self, whole: tuple[int, ...], start: int, stop: int, tp: int, rank: int) -> None:
        self.shape, self.ndim = torch.Size(whole), len(whole)
        self.local = torch.zeros(stop - start)
        self.megatron_fsdp_slice = slice(start, stop)
        self.placements = (SimpleNamespace(is_shard=lambda: True, dim=0),)
        self.device_mesh = SimpleNamespace(
            mesh_dim_names=("tp",), size=lambda at: tp, get_local_rank=lambda at: rank
        )

    def detach(self) -> Parameter:
        return self

    def to_local(self) -> torch.Tensor:
        return self.local


def fused(ck: Any, start: str, tp: int, rank: int) -> torch.Tensor:
    at = f"{start}model.layers.0.mlp."
    parts = [ck[f"{at}{x}_proj.weight"][...] for x in ("gate", "up")]
    return torch.cat([part.chunk(tp)[rank] for part in parts])


@pytest.mark.parametrize("kind", ["hf", "fsdp_dtensor"])
@pytest.mark.parametrize(("tp", "rank"), [(1, 0), (2, 1)])
def test_slices_are_filled_from_main_weights(kind: str, tp: int, rank: int, tmp_path: Path) -> None:
    source = hf_with_optimizer(tmp_path / "hf", weights(DENSE), DENSE)
    if kind == "fsdp_dtensor":
        to_fsdp(source, tmp_path / "fsdp", "fsdp=2")
        source = tmp_path / "fsdp"
    size = 48 * 16 // tp
    for start, stop in ((0, size), (size // 3 + 1, size - 5), (size // 2, size), (7, 7)):
        param = Parameter((48, 16), start, stop, tp, rank)
        state = {"exp_avg": Parameter((48, 16), start, stop, tp, rank), "step": torch.zeros(())}
        with Checkpoint(formats.read_manifest(source)) as ck:
            report = load_parameters(ck, {FC1: param}, {FC1: state})
            want = fused(ck, "optimizer.master.", tp, rank).reshape(-1)[start:stop]
            moments = fused(ck, "optimizer.exp_avg.", tp, rank).reshape(-1)[start:stop]
        assert torch.equal(param.local, want)
        assert torch.equal(state["exp_avg"].local, moments)
        assert state["step"] == 7.0
        assert len(report.filled) == 3


def test_components_of_a_gdn_projection_are_cut_one_by_one(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "hf", weights(LINEAR, torch.float32), LINEAR)
    to_fsdp(source, tmp_path / "fsdp")
    rows = 2 * 12 + 2 * 20 + 2 * 4
    at = "module.decoder.layers.0.self_attention.in_proj.weight"
    found = []
    with Checkpoint(formats.read_manifest(tmp_path / "fsdp")) as ck:
        for rank in (0, 1):
            param = Parameter((rows, 16), 0, rows * 8, 2, rank)
            load_parameters(ck, {at: param})
            found.append(param.local.reshape(-1, 16))
        alone = Parameter((rows, 16), 0, rows * 16, 1, 0)
        load_parameters(ck, {at: alone})
    sizes = (12, 12, 20, 20, 4, 4)
    halves = [x.split([n // 2 for n in sizes]) for x in found]
    whole = torch.cat([torch.cat(pair) for pair in zip(*halves, strict=True)])
    assert torch.equal(whole, alone.local.reshape(-1, 16))


def test_what_has_no_source_is_named_before_anything_is_filled(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "hf", weights(DENSE), DENSE)
    param = Parameter((48, 16), 0, 768, 1, 0)
    state = {FC1: {"exp_avg": Parameter((48, 16), 0, 768, 1, 0)}}
    with (
        Checkpoint(formats.read_manifest(source)) as ck,
        pytest.raises(CoverageError, match=r"1 tensors have no source .*linear_fc1.weight.exp_avg"),
    ):
        load_parameters(ck, {FC1: param}, state)
    assert not param.local.any()


def test_entries_that_a_checkpoint_lacks_stay_the_callers(tmp_path: Path) -> None:
    source = hf_with_optimizer(tmp_path / "hf", weights(DENSE), DENSE)
    to_fsdp(source, tmp_path / "fsdp")
    for path, iteration, kept in (
        (tmp_path / "fsdp", 1, ["mine"]),
        (source, 0, ["iteration", "mine"]),
    ):
        into = {n: torch.zeros_like(x) for n, x in weights(DENSE).items()}
        state = {"model": into, "iteration": 0, "mine": "as it was"}
        report = intarsia.load(path, state, strict=False)
        assert all(x.any() for x in into.values())
        assert (state["iteration"], state["mine"]) == (iteration, "as it was")
        assert [*report.kept] == kept
        assert f"kept     {', '.join(kept)}: it has no source" in str(report)


def test_counters_of_one_parameter_that_differ_are_refused(tmp_path: Path) -> None:
    source = hf_with_optimizer(tmp_path / "hf", weights(DENSE), DENSE)
    file = source / "optimizer" / "model.safetensors"
    up = {"optimizer.step.model.layers.0.mlp.up_proj.weight": torch.tensor(9.0)}
    save_file(load_file(file) | up, file, {"format": "pt"})
    param, step = Parameter((48, 16), 0, 768, 1, 0), torch.zeros(())
    with (
        Checkpoint(formats.read_manifest(source)) as ck,
        pytest.raises(CoverageError, match=r"are \[7.0, 9.0\], and one parameter holds them all"),
    ):
        load_parameters(ck, {FC1: param}, {FC1: {"step": step}})
    assert not param.local.any()


def test_states_of_what_is_not_to_be_filled_are_refused(tmp_path: Path) -> None:
    source = hf_with_optimizer(tmp_path / "hf", weights(DENSE), DENSE)
    param, state = Parameter((48, 16), 0, 768, 1, 0), {"step": torch.zeros(())}
    with (
        Checkpoint(formats.read_manifest(source)) as ck,
        pytest.raises(UsageError, match=r"states are given of 1 .*: decoder.layers.0.mlp"),
    ):
        load_parameters(ck, {FC1: param}, {FC1.removeprefix("module.module."): state})
    assert not param.local.any()
