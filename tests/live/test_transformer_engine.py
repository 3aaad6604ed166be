"""Which placements TransformerEngine's parameters get, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from intarsia import placement
from intarsia.errors import CoverageError, LayoutError, UsageError
from intarsia.live.transformer_engine import model_state, set_device_mesh, set_state
from intarsia.mesh import Box
from intarsia.placement import boxes, placements_of
from tests.live.transformer_engine_model import (
    Model,
    te_attention,
    te_grouped,
    te_layer,
    te_linear,
    te_mlp,
    te_norm,
    whole,
)

GATED = _StridedShard(0, split_factor=2)
HIDDEN, FFN = 12, 20
FORGETS = placement._torch_version() < (2, 12)
"""Whether FSDP2 of the installed torch forgets that tensor parallelism has interleaved an axis."""


def ranks(fsdp: int, tp: int) -> Iterator[DeviceMesh]:
    """The mesh as each of its ranks sees it, one after the other, in this process."""
    for rank in range(fsdp * tp):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=fsdp * tp)
        try:
            yield init_device_mesh("cpu", (fsdp, tp), mesh_dim_names=("fsdp", "tp"))
        finally:
            dist.destroy_process_group()


@pytest.fixture
def tp() -> Iterator[DeviceMesh]:
    """Two tensor-parallel ranks, seen by the second."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


def placed(module: nn.Module, mesh: DeviceMesh, **more: Any) -> dict[str, Any]:
    set_device_mesh(module, mesh, **more)
    return {name: p.placements[0] for name, p in module.named_parameters()}


def boxes_held(param: DTensor, place: Any) -> list[tuple[Box, Box]]:
    """The boxes of the rank at `place`; torch's caches know one rank per process."""
    return boxes(param.shape, param.device_mesh.shape, placements_of(param), place)


def collected(build: Callable[[Any], nn.Module], name: str, fsdp: int, tp: int) -> torch.Tensor:
    """A whole parameter put together from the boxes of every rank, each element once."""
    found: torch.Tensor | None = None
    for mesh in ranks(fsdp, tp):
        module = build(mesh["tp"].get_group())
        set_device_mesh(module, mesh["tp"])
        if fsdp > 1:
            fully_shard(module, mesh=mesh["fsdp"])
        param = dict(module.named_parameters())[name]
        assert isinstance(param, DTensor)
        found = torch.full(param.shape, torch.nan) if found is None else found
        local = param.to_local().detach()
        place = (mesh if fsdp > 1 else mesh["tp"]).get_coordinate()
        for at, to in boxes_held(param, place):
            here = tuple(slice(o, o + n) for o, n in zip(at.offsets, at.shape, strict=True))
            there = tuple(slice(o, o + n) for o, n in zip(to.offsets, to.shape, strict=True))
            assert found[there].isnan().all()
            found[there] = local[here]
    assert found is not None
    return found


def test_a_column_parallel_layer_is_cut_by_rows(tp: DeviceMesh) -> None:
    layer = te_linear("l", HIDDEN, FFN, "column", tp.get_group())
    assert placed(layer, tp) == {"weight": Shard(0), "bias": Shard(0)}
    assert layer.weight.shape == (FFN, HIDDEN)
    assert layer.weight.to_local().shape == (FFN // 2, HIDDEN)


def test_a_row_parallel_layer_is_cut_by_columns_and_its_bias_is_whole(tp: DeviceMesh) -> None:
    layer = te_linear("l", FFN, HIDDEN, "row", tp.get_group())
    assert placed(layer, tp) == {"weight": Shard(1), "bias": Replicate()}


def test_a_layer_that_is_not_parallel_is_whole(tp: DeviceMesh) -> None:
    assert set(placed(te_linear("l", HIDDEN, FFN), tp).values()) == {Replicate()}
    mlp = te_mlp("m", HIDDEN, FFN, set_parallel_mode=False)
    assert set(placed(mlp, tp).values()) == {Replicate()}


def test_split_parameters_are_cut_each_by_itself(tp: DeviceMesh) -> None:
    layer = te_linear(
        "l", HIDDEN, 3 * HIDDEN, "column", tp.get_group(), "LayerNorm",
        parameters_split=("query", "key", "v"),
    )  # fmt: skip
    found = placed(layer, tp)
    assert {name for name, p in found.items() if p == Replicate()} == {
        "layer_norm_weight",
        "layer_norm_bias",
    }
    assert found["query_weight"] == found["v_bias"] == Shard(0)


def test_norms_are_whole_and_torchs_own_layers_stay_as_they_are(tp: DeviceMesh) -> None:
    both = nn.Sequential(te_norm("LayerNorm", "a", 4), te_norm("RMSNorm", "b", 4), nn.LayerNorm(4))
    set_device_mesh(both, tp)
    kinds = {name: isinstance(p, DTensor) for name, p in both.named_parameters()}
    assert kinds == {
        "0.weight": True, "0.bias": True, "1.weight": True, "2.weight": False, "2.bias": False,
    }  # fmt: skip


def test_a_disabled_bias_never_becomes_a_parameter(tp: DeviceMesh) -> None:
    for layer in (
        te_linear("l", HIDDEN, FFN, "column", tp.get_group(), bias=False),
        te_mlp("m", HIDDEN, FFN, tp.get_group(), bias=False),
        te_grouped("g", 3, HIDDEN, FFN, "column", tp.get_group()),
    ):
        before = [name for name, _ in layer.named_parameters()]
        set_device_mesh(layer, tp)
        assert [name for name, _ in layer.named_parameters()] == before
        assert all(p.numel() for p in layer.parameters())
    assert type(layer.bias0) is torch.Tensor


@pytest.mark.parametrize(("mode", "axis"), [("column", 1), ("row", 2)])
def test_the_axis_of_a_stacked_weight_moves_by_one(tp: DeviceMesh, mode: str, axis: int) -> None:
    stacked = te_grouped("g", 3, 8, 6, mode, tp.get_group(), single=True)
    assert placed(stacked, tp) == {"weight": Shard(axis)}
    assert stacked.weight.shape == (3, 6, 8)
    single = te_grouped("g", 3, 8, 6, mode, tp.get_group())
    assert set(placed(single, tp).values()) == {Shard(axis - 1)}


@pytest.mark.parametrize(("mode", "fsdp", "tp"), [("column", 3, 2), ("row", 2, 4), ("row", 3, 1)])
def test_a_stacked_weight_is_whole_whatever_the_mesh(mode: str, fsdp: int, tp: int) -> None:
    def build(group: Any) -> nn.Module:
        return te_grouped("g", 3, 8, 12, mode, group, single=True)

    truth = build(None).get_parameter("weight").detach().clone()
    assert collected(build, "weight", fsdp, tp).equal(truth)


def test_a_stacked_weight_computes_as_it_did_and_its_gradient_arrives(tp: DeviceMesh) -> None:
    """The kernels insist on TransformerEngine's class, which allows no DTensor of itself."""
    layer = te_grouped("g", 3, 8, 6, "column", tp.get_group(), single=True)
    layer.weight.sequence_parallel = True
    before, held = layer(torch.ones(6, 8)).detach(), layer.weight.rowwise_data
    set_device_mesh(layer, tp)
    assert layer.weight.to_local().data_ptr() == held.data_ptr()
    assert layer.weight.sequence_parallel
    assert not hasattr(layer.weight, "rowwise_data")
    after = layer(torch.ones(6, 8))
    assert after.equal(before)
    after.sum().backward()
    assert layer.weight.grad.to_local().equal(torch.full((3, 3, 8), 2.0))


def test_a_stacked_weight_that_is_quantised_is_refused(tp: DeviceMesh) -> None:
    layer = te_grouped("g", 3, 8, 6, "column", tp.get_group(), single=True)
    layer.weight.quantizer = object()
    with pytest.raises(UsageError, match="one quantised tensor of 3 weights"):
        set_device_mesh(layer, tp)


def test_the_axis_taken_verbatim_corrupts_a_stacked_weight() -> None:
    """Axis 0 of (num_gemms, out, in) is the gemms: each rank would hold other experts."""
    truth, wrong = whole("g.weight", 2, 6, 8), torch.empty(4, 3, 8)
    for rank, mesh in enumerate(ranks(1, 2)):
        layer = te_grouped("g", 2, 8, 6, "column", mesh["tp"].get_group(), True)
        local = layer.weight.detach().clone()
        taken = DTensor.from_local(local, mesh["tp"], [Shard(0)], run_check=False)
        ((_, to),) = boxes_held(taken, (rank,))
        wrong[to.offsets[0] : to.offsets[0] + 2] = local
        assert taken.shape == (4, 3, 8)
    assert wrong.numel() == truth.numel()
    assert not wrong.reshape(truth.shape).equal(truth)

    def stacked(group: Any) -> nn.Module:
        return te_grouped("g", 2, 8, 6, "column", group, True)

    assert collected(stacked, "weight", 1, 2).equal(truth)


def test_gate_and_up_as_one_shard_depend_on_the_number_of_ranks() -> None:
    def joined(tp: int) -> torch.Tensor:
        """What `Shard(0)` calls the whole tensor: the ranks' rows, one after the other."""
        groups = (mesh["tp"].get_group() for mesh in ranks(1, tp))
        parts = [te_mlp("m", HIDDEN, FFN, g).fc1_weight.detach() for g in groups]
        return torch.cat(parts)

    truth = whole("m.fc1_weight", 2 * FFN, HIDDEN)
    assert joined(1).equal(truth)
    assert not joined(2).equal(truth)
    assert not joined(2).equal(joined(4))


@pytest.mark.parametrize(("fsdp", "tp"), [(1, 2), (1, 4), (2, 2), (3, 2), (4, 2), (3, 4), (5, 1)])
@pytest.mark.parametrize("name", ["fc1_weight", "fc1_bias", "fc2_weight"])
def test_a_gated_mlp_is_whole_whatever_the_mesh(name: str, fsdp: int, tp: int) -> None:
    def build(group: Any) -> nn.Module:
        return te_mlp("m", HIDDEN, FFN, group)

    truth = build(None).get_parameter(name).detach()
    if FORGETS and fsdp > 1 and tp > 1 and "fc1" in name:
        with pytest.raises(LayoutError, match="do not say where the elements are"):
            collected(build, name, fsdp, tp)
    else:
        assert collected(build, name, fsdp, tp).equal(truth)


def test_what_fsdp_of_torch_2_11_forgets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for mesh in ranks(2, 2):
        part = torch.zeros(10, HIDDEN)
        for first, known in (
            (GATED, False),
            (Shard(0), False),
            (Shard(1), True),
            (Replicate(), True),
        ):
            held = DTensor.from_local(part, mesh, (first, GATED), run_check=False)
            monkeypatch.setattr(placement, "_torch_version", lambda: (2, 12))
            assert placements_of(held)
            monkeypatch.setattr(placement, "_torch_version", lambda: (2, 11))
            if known:
                assert placements_of(held)
                continue
            with pytest.raises(LayoutError, match=r"FSDP2 of torch 2\.11 forgets"):
                placements_of(held)


@pytest.mark.parametrize("fsdp", [1, 2, 3])
def test_fused_query_key_and_value_are_whole_whatever_the_mesh(fsdp: int) -> None:
    def build(group: Any) -> nn.Module:
        return te_attention("a", HIDDEN, group, fused=True)

    truth = build(None).get_parameter("layernorm_qkv.weight").detach()
    if FORGETS and fsdp > 1:
        pytest.skip("refused, as the gated ones are")
    assert collected(build, "layernorm_qkv.weight", fsdp, 2).equal(truth)


def test_only_a_gated_activation_is_interleaved(tp: DeviceMesh) -> None:
    gated = placed(te_mlp("m", HIDDEN, FFN, tp.get_group()), tp)
    assert gated["fc1_weight"] == gated["fc1_bias"] == GATED
    assert (gated["fc2_weight"], gated["fc2_bias"]) == (Shard(1), Replicate())
    plain = placed(te_mlp("m", HIDDEN, FFN, tp.get_group(), "gelu"), tp)
    assert plain["fc1_weight"] == plain["fc1_bias"] == Shard(0)


def test_an_activation_that_contradicts_the_sizes_is_refused(tp: DeviceMesh) -> None:
    layer = te_mlp("m", HIDDEN, FFN, tp.get_group(), "gelu")
    layer.activation = "geglu"
    with pytest.raises(LayoutError, match=r"2 x 10 rows of fc1 .* fc1_weight has 10"):
        set_device_mesh(layer, tp)


def test_a_layer_that_fuses_without_saying_so_is_named(tp: DeviceMesh) -> None:
    layers = nn.Sequential(te_linear("l", HIDDEN, 2 * FFN, "column", tp.get_group()))
    assert set(placed(layers, tp, blocks={"0": 2}).values()) == {GATED}
    with pytest.raises(UsageError, match="`1`, which is no Linear"):
        set_device_mesh(layers, tp, blocks={"1": 2})


def test_unequal_query_and_key_in_one_weight_are_refused(tp: DeviceMesh) -> None:
    layer = te_attention("a", HIDDEN, tp.get_group(), True, groups=2)
    with pytest.raises(LayoutError, match="12 rows of query and 6 of key"):
        set_device_mesh(layer, tp)


def test_a_second_call_changes_nothing_and_another_mesh_is_an_error(tp: DeviceMesh) -> None:
    layer = te_layer("t", HIDDEN, FFN, tp.get_group(), fused=False)
    set_device_mesh(layer, tp)
    before = list(layer.parameters())
    set_device_mesh(layer, tp)
    assert all(a is b for a, b in zip(before, layer.parameters(), strict=True))
    other = init_device_mesh("cpu", (1, 2), mesh_dim_names=("other", "tp"))
    with pytest.raises(UsageError, match=r"is on tp_mesh .* already"):
        set_device_mesh(layer, other["other"])


def test_a_refused_call_converts_nothing(tp: DeviceMesh) -> None:
    layers = nn.Sequential(
        te_linear("l", HIDDEN, FFN, "column", tp.get_group()),
        te_linear("l", HIDDEN, FFN, "column"),
    )
    with pytest.raises(UsageError, match="built for 1 tensor-parallel ranks, tp_mesh has 2"):
        set_device_mesh(layers, tp)
    assert not any(isinstance(p, DTensor) for p in layers.parameters())


def test_parameters_that_fsdp_sharded_first_are_refused() -> None:
    for mesh in ranks(2, 2):
        layer = te_linear("l", HIDDEN, FFN, "column", mesh["tp"].get_group())
        fully_shard(layer, mesh=mesh["fsdp"])
        with pytest.raises(UsageError, match="before fully_shard"):
            set_device_mesh(layer, mesh["tp"])
        with pytest.raises(UsageError, match="has 2 axes"):
            set_device_mesh(layer, mesh)


def test_no_mesh_at_all_is_no_change() -> None:
    layer = te_linear("l", HIDDEN, FFN)
    set_device_mesh(layer)
    assert type(layer.weight) is nn.Parameter


def test_the_mesh_of_statistics_is_named_on_layers_with_weights(tp: DeviceMesh) -> None:
    layer = te_layer("t", HIDDEN, FFN, tp.get_group(), fused=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_device_mesh(layer, tp)
        set_device_mesh(layer, tp, tp)
        set_device_mesh(te_norm("RMSNorm", "n", 4), tp)
    assert layer.layernorm_mlp.weight_mesh == layer.self_attention.proj.weight_mesh == tp
    with pytest.warns(UserWarning, match="weight_mesh has no effect on RMSNorm"):
        set_device_mesh(te_norm("RMSNorm", "n", 4), tp, tp)


def test_a_weight_that_is_quantised_already_gets_the_group_of_its_statistics(
    tp: DeviceMesh,
) -> None:
    class StandInQuantizer:
        amax_reduction_group: Any = None
        with_amax_reduction = False

    layer = te_linear("l", HIDDEN, FFN)
    quantizer = layer.weight._quantizer = StandInQuantizer()  # type: ignore[attr-defined]
    set_device_mesh(layer, weight_mesh=tp)
    assert quantizer.amax_reduction_group is tp.get_group()
    assert quantizer.with_amax_reduction


def test_marks_and_frozen_weights_survive(tp: DeviceMesh) -> None:
    layer = te_linear("l", HIDDEN, FFN, "column", tp.get_group())
    layer.weight.sequence_parallel = True  # type: ignore[attr-defined]
    layer.bias.requires_grad_(False)
    set_device_mesh(layer, tp)
    assert layer.weight.sequence_parallel  # type: ignore[attr-defined]
    assert layer.weight.requires_grad
    assert not layer.bias.requires_grad


def test_forward_computes_on_plain_tensors_and_gradients_are_dtensors(tp: DeviceMesh) -> None:
    layer = te_linear("l", HIDDEN, FFN, "column", tp.get_group())
    expected = layer(torch.ones(2, HIDDEN))
    set_device_mesh(layer, tp)
    out = layer(torch.ones(2, HIDDEN))
    assert type(out) is torch.Tensor
    assert out.equal(expected)
    out.sum().backward()
    assert layer.weight.grad.placements == (Shard(0),)  # type: ignore[union-attr]
    with pytest.raises(RuntimeError):
        layer(torch.ones(2, HIDDEN + 1))
    assert isinstance(layer.weight, DTensor)


def test_an_unknown_module_of_transformer_engine_is_refused(tp: DeviceMesh) -> None:
    class StandInUnknown(nn.Linear):
        __module__ = "transformer_engine.pytorch.ops"

    with pytest.raises(UsageError, match="no rule says how"):
        set_device_mesh(StandInUnknown(4, 4), tp)


def test_a_state_that_lacks_a_weight_is_refused(tp: DeviceMesh) -> None:
    model = Model(tp.get_group())
    set_device_mesh(model, tp)
    state = model_state(model)
    assert not [name for name in state if name.endswith("_extra_state")]
    set_state(model, None, {"model": state})
    del state["up.weight"]
    with pytest.raises(CoverageError, match=r"lacks 1 of .* \(up.weight\)"):
        set_state(model, None, {"model": state})
