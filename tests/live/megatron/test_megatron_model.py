"""What a live Megatron model says of its tensors, on modules that stand in for TransformerEngine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import intarsia
from intarsia.errors import CoverageError, FamilyError, LayoutError, UsageError
from intarsia.live.megatron.model import is_megatron, live_tensors
from intarsia.live.megatron.parallel import WHOLE, rank_of_axis
from tests.live.megatron_stand_in import CONFIG, StandInGroup, last_stage, stand_in, write_model


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    return write_model(tmp_path / "hf")


def part(x: torch.Tensor, count: int, axis: int = 0) -> torch.Tensor:
    """The last of so many parts."""
    return x.chunk(count, axis)[-1]


@pytest.mark.parametrize(("tp", "etp"), [(1, 1), (2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("centered", [False, True])
def test_local_numbers_of_layers_and_experts_lead_to_the_whole_models(
    hf: Path, tp: int, etp: int, centered: bool
) -> None:
    model: Any = last_stage(tp, etp, centered)
    report = intarsia.load(hf, into=model, strict=False)
    with intarsia.open(hf) as ck:
        at = {n.removeprefix("model.layers.1."): ck[n][...] for n in ck if ".layers.1." in n}
        head, final = ck["lm_head.weight"][...], ck["model.norm.weight"][...]
    layer = model.decoder.layers[0]
    q, k, v = (at[f"self_attn.{x}_proj.weight"].reshape(2, -1, 4, 8) for x in "qkv")
    qkv = torch.cat([q, k, v], 1).reshape(-1, 8)
    assert torch.equal(layer.self_attention.linear_qkv.weight, part(qkv, tp))
    out = at["self_attn.o_proj.weight"]
    assert torch.equal(layer.self_attention.linear_proj.weight, part(out, tp, 1))
    assert torch.equal(layer.mlp.router.weight, at["mlp.gate.weight"])
    for here, expert in enumerate((2, 3)):
        gate, up, down = (
            at[f"mlp.experts.{expert}.{x}_proj.weight"] for x in ("gate", "up", "down")
        )
        fc1 = getattr(layer.mlp.experts.linear_fc1, f"weight{here}")
        assert torch.equal(fc1, torch.cat([part(gate, etp), part(up, etp)]))
        fc2 = getattr(layer.mlp.experts.linear_fc2, f"weight{here}")
        assert torch.equal(fc2, part(down, etp, 1))
    padded = torch.cat([head, torch.zeros(2, 8)])
    assert torch.equal(model.output_layer.weight, part(padded, tp))
    shift = 1.0 if centered else 0.0
    assert torch.equal(model.decoder.final_layernorm.weight, final - shift)
    first = layer.self_attention.linear_qkv.layer_norm_weight
    assert torch.equal(first, at["input_layernorm.weight"] - shift)
    assert len(report.filled) == sum(1 for _ in live_tensors(model))
    assert report.config is not None
    assert report.config["megatron"] == {}


def test_wrappers_do_not_change_what_a_tensor_is() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    model = last_stage(1, 1)
    plain = [(live.known, live.tensor) for live in live_tensors(model)]
    wrapped = Wrapper(Wrapper(model))
    assert is_megatron(wrapped)
    assert [(live.known, live.tensor) for live in live_tensors(wrapped)] == plain
    known = [name for name, _ in plain]
    assert "decoder.layers.1.mlp.experts.experts.3.linear_fc2.weight" in known


def test_what_a_wrapper_has_of_its_own_is_not_left_out(hf: Path, tmp_path: Path) -> None:
    wrapper: Any = nn.Module()
    wrapper.module, wrapper.scale = last_stage(1, 1), nn.Parameter(torch.ones(3))
    with pytest.raises(
        CoverageError, match=r"1 of .* tensors of the model have no source .*: scale"
    ):
        intarsia.load(hf, into=wrapper, strict=False)
    with pytest.raises(FamilyError, match=r"1 tensors of the model are not in the table .*: scale"):
        intarsia.save(tmp_path / "out", wrapper, config=CONFIG)
    wrapper.module.scale = nn.Parameter(torch.ones(3))
    with pytest.raises(UsageError, match="two tensors of the model are `scale`"):
        intarsia.load(hf, into=wrapper, strict=False)


def test_a_duplicated_weight_is_whole_whatever_its_attributes_say() -> None:
    module = stand_in(None, 2, weight=(4, 4), bias=(4,))
    assert rank_of_axis(module.weight, module, "weight", "w") == WHOLE
    row = stand_in("row", 2, weight=(4, 2), bias=(4,))
    assert rank_of_axis(row.weight, row, "weight", "w") == (2, 1, 1)
    assert rank_of_axis(row.bias, row, "bias", "b") == WHOLE


def test_a_part_of_the_wrong_size_is_refused_with_both_shapes(hf: Path) -> None:
    model: Any = last_stage(2, 1)
    model.decoder.layers[0].self_attention.linear_qkv._tp_group = StandInGroup(4)
    with pytest.raises(FamilyError, match=r"has shape \[16, 8\].*gives \[8, 8\]"):
        intarsia.load(hf, into=model, strict=False)


def test_ranks_that_nothing_tells_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "megatron.core.parallel_state", raising=False)
    module: Any = stand_in("column", 2, weight=(4, 4))
    module._tp_group = None
    with pytest.raises(UsageError, match="initialize_model_parallel"):
        rank_of_axis(module.weight, module, "weight", "decoder.w")


def test_a_mesh_or_an_optimizer_beside_a_megatron_model_is_refused(hf: Path) -> None:
    model = last_stage(1, 1)
    with pytest.raises(UsageError, match="itself defines"):
        intarsia.load(hf, into=model, mesh="tp=2", rank=0)
    with pytest.raises(UsageError, match="optimizer"):
        intarsia.load(hf, into=model, optimizer=torch.optim.SGD(model.parameters()))


def test_saving_asks_for_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match="config="):
        intarsia.save(tmp_path / "out", last_stage(1, 1))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("centered", [False, True])
def test_a_save_reports_the_elements_that_another_centre_of_norms_rounds(
    centered: bool, background: bool, tmp_path: Path
) -> None:
    model: Any = last_stage(1, 1, centered)
    with torch.no_grad():
        for live in live_tensors(model):
            live.tensor.fill_(0.5)
        model.decoder.final_layernorm.weight[:3] = 1e-9  # 1 + 1e-9 is 1 in single precision
        model.decoder.layers[0].self_attention.q_layernorm.weight[0] = 1e-10
    found = intarsia.save(tmp_path / "out", model, config=CONFIG, background=background)
    report = found.wait() if background else found
    rounded = {each.tensor: each.recentred for each in report.changed}
    expected = {"model.norm.weight": 3, "model.layers.1.self_attn.q_norm.weight": 1}
    assert rounded == (expected if centered else {})
    said = "note     4 elements of 2 norms were rounded, `model.norm.weight` among them"
    assert (said in str(report)) == centered
    with intarsia.open(tmp_path / "out") as ck:
        assert report.tensors == len(ck.keys())


def test_two_models_with_the_same_layers_are_not_saved_as_one(tmp_path: Path) -> None:
    models = [last_stage(1, 1), last_stage(1, 1)]
    with pytest.raises(CoverageError, match=r"rank 0 holds .* of `.*` twice"):
        intarsia.save(tmp_path / "out", models, config=CONFIG)
    assert not (tmp_path / "out").exists()


def test_a_model_on_meta_keeps_what_megatron_says_of_its_parameters(hf: Path) -> None:
    model: Any = last_stage(2, 1).to("meta")
    model.output_layer.weight.allreduce = True
    intarsia.load(hf, into=model, strict=False)
    assert not model.output_layer.weight.is_meta
    assert model.output_layer.weight.allreduce


def test_the_shape_of_a_dtensor_is_never_taken_for_a_part(hf: Path) -> None:
    """A head of all ranks in a module of two parts; and one of Megatron-FSDP's without its slice."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
        model: Any = last_stage(2, 1)
        whole = distribute_tensor(torch.zeros(12, 8), mesh, [Shard(0)])
        model.output_layer.weight = nn.Parameter(whole)
        with pytest.raises(LayoutError, match="that of all ranks"):
            intarsia.load(hf, into=model, strict=False)
        model.output_layer.weight.megatron_fsdp_dist_index = None
        with pytest.raises(LayoutError, match="megatron_fsdp_slice"):
            intarsia.load(hf, into=model, strict=False)
    finally:
        dist.destroy_process_group()
