"""TransformerEngine's parameters as DTensors on a tensor-parallel mesh.

TransformerEngine gives each tensor-parallel rank plain tensors.  FSDP2 then takes the ranks for
copies of each other, and a checkpoint keeps one of them.  A DTensor says what a rank's part is:

    set_device_mesh(model, mesh["tp"])        # before `fully_shard`, and before the optimizer
    fully_shard(model, mesh=mesh["fsdp"])
    state = {"model": model_state(model), "optim": optimizer_state(model, optimizer)}
    dcp.save(state, checkpoint_id=folder)     # torch's own; `set_state` takes what it loads

The modules are known by what they have, so TransformerEngine is never imported here.  Which axis
of which parameter is cut is in `intarsia.live.transformer_engine.rules`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from intarsia.errors import LayoutError, UsageError
from intarsia.live.transformer_engine.grouped import (
    grouped_kinds,
    is_grouped,
    is_quantised,
    marks,
    plain_memory,
    regrouped,
)
from intarsia.live.transformer_engine.rules import TensorParallelCut, cuts_of, is_gemm

Wanted = tuple[nn.Module, str, TensorParallelCut]


def set_device_mesh(
    module: nn.Module,
    tp_mesh: DeviceMesh | None = None,
    weight_mesh: DeviceMesh | None = None,
    *,
    blocks: Mapping[str, int] | None = None,
) -> None:
    """Make the parameters of every TransformerEngine module in `module` DTensors on `tp_mesh`.

    `weight_mesh` is the mesh over which the statistics (amax) of quantised weights are taken:
    all ranks that share a weight, FSDP's and tensor parallelism's.  `blocks` names the layers
    that fuse several projections of equal size without saying so, as `{"mlp.linear_fc1": 2}` for
    gate and up in one `Linear`; `LayerNormMLP` and attention tell by themselves.

    A second call with the same meshes changes nothing.
    """
    _check_is_line("tp_mesh", tp_mesh)
    _check_is_line("weight_mesh", weight_mesh)
    found = cuts_of(module, blocks or {})
    wanted: list[Wanted] = []
    for name, owner, cuts in found:
        _check_same(name, owner, "weight_mesh", weight_mesh)
        if tp_mesh is not None and not _check_same(name, owner, "tp_mesh", tp_mesh):
            _check_group(name, owner, cuts, tp_mesh)
            wanted += [(owner, param, cut) for param, cut in cuts.items()]
            _check_plain(name, owner, cuts, tp_mesh)
    if tp_mesh is not None:
        kinds = {owner: grouped_kinds(owner) for owner, _, _ in wanted}
        _convert(wanted, tp_mesh)
        for owner in dict.fromkeys(owner for owner, _, _ in wanted):
            _join(owner, tp_mesh)
            _compute_on_local_tensors(owner, kinds[owner])
            vars(owner)["tp_mesh"] = tp_mesh
    if weight_mesh is not None:
        _reduce_over([owner for _, owner, _ in found], weight_mesh, type(module).__name__)


def _check_is_line(word: str, mesh: DeviceMesh | None) -> None:
    if mesh is not None and mesh.ndim != 1:
        raise UsageError(
            f"{word} has {mesh.ndim} axes {list(mesh.shape)}, expected 1",
            hint=f'take one axis of it, as mesh["{word.removesuffix("_mesh")}"], or flatten it',
        )


def _check_same(name: str, owner: nn.Module, word: str, mesh: DeviceMesh | None) -> bool:
    """Whether a module has this mesh already; an error where it has another."""
    held = vars(owner).get(word)
    if held is None or mesh is None:
        return False
    if held != mesh:
        raise UsageError(
            f"`{name}` is on {word} {held} already, not on {mesh}",
            hint="build the model again to place it on another mesh",
        )
    return True


def _check_group(
    name: str, owner: nn.Module, cuts: Mapping[str, TensorParallelCut], mesh: DeviceMesh
) -> None:
    """A module that is cut knows its number of ranks, and their group once it is set."""
    if all(cut.axis is None for cut in cuts.values()):
        return
    size = getattr(owner, "tp_size", 1)
    if size != mesh.size():
        raise UsageError(
            f"`{name}` was built for {size} tensor-parallel ranks, tp_mesh has {mesh.size()}",
            hint="give the module's tp_size or tp_group and the mesh the same ranks",
        )
    group = getattr(owner, "tp_group", None)
    if group is None or size == 1:
        return
    held, given = dist.get_process_group_ranks(group), mesh.mesh.tolist()
    if held != given:
        raise UsageError(f"`{name}` has the tensor-parallel ranks {held}, tp_mesh has {given}")


def _check_plain(
    name: str, owner: nn.Module, cuts: Mapping[str, TensorParallelCut], mesh: DeviceMesh
) -> None:
    for param in cuts:
        held = owner._parameters[param]
        if isinstance(held, DTensor):
            raise UsageError(
                f"`{name}.{param}` is a DTensor {held.placements} already, without a tp_mesh",
                hint="call set_device_mesh before fully_shard",
            )
        if held is not None and is_grouped(held) and is_quantised(held):
            raise UsageError(
                f"`{name}.{param}` is one quantised tensor of {len(held)} weights, which a"
                " DTensor cannot represent",
                hint="build the module outside of quantized_model_init, or with"
                " single_grouped_weight=False",
            )
        if held is not None and held.device.type not in (mesh.device_type, "meta"):
            raise UsageError(
                f"`{name}.{param}` is on {held.device.type}, tp_mesh is of {mesh.device_type}",
                hint="move the model first",
            )


def _convert(wanted: list[Wanted], mesh: DeviceMesh) -> None:
    """All or nothing: every parameter is made before the first is put in its place."""
    made: dict[int, tuple[TensorParallelCut, nn.Parameter]] = {}
    for owner, name, cut in wanted:
        param = owner._parameters[name]
        assert param is not None
        known = made.setdefault(id(param), (cut, _as_dtensor(param, cut, mesh)))
        if known[0] != cut:
            raise LayoutError(f"`{name}` is shared by modules that cut it as {known[0]} and {cut}")
    for owner, name, _ in wanted:
        owner._parameters[name] = made[id(owner._parameters[name])][1]


def _as_dtensor(param: nn.Parameter, cut: TensorParallelCut, mesh: DeviceMesh) -> nn.Parameter:
    shape = list(param.shape)
    if cut.axis is not None:
        shape[cut.axis] *= mesh.size()
    placed = DTensor.from_local(
        plain_memory(param),
        mesh,
        [placement_of(cut)],
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(prod(shape[axis + 1 :]) for axis in range(len(shape))),
    )
    made = nn.Parameter(placed, requires_grad=param.requires_grad)
    vars(made).update(marks(param))
    return made


def placement_of(cut: TensorParallelCut) -> Placement:
    """torch's placement of a cut on the tensor-parallel axis."""
    if cut.axis is None:
        return Replicate()
    if cut.blocks > 1:
        return _StridedShard(cut.axis, split_factor=cut.blocks)
    return Shard(cut.axis)


def _join(owner: nn.Module, mesh: DeviceMesh) -> None:
    """Give the group to a module that was built with a size alone and waits for it."""
    waits = getattr(owner, "tp_group_initialized", True) is False
    if waits and mesh.size() == getattr(owner, "tp_size", 1):
        owner.set_tensor_parallel_group(mesh.get_group())  # type: ignore[operator]


def _compute_on_local_tensors(owner: nn.Module, grouped: Mapping[str, type]) -> None:
    """TransformerEngine's kernels take plain tensors: while `forward` runs, a module shows them.

    An attribute of the instance hides the registered parameter of its name, which stays where
    FSDP2 and the optimizer look for it; gradients reach it as DTensors.  Those in `grouped` were
    of a class of TransformerEngine's own, which its kernels ask for.
    """

    def show(module: nn.Module, args: Any) -> None:
        for name, param in module._parameters.items():
            if isinstance(param, DTensor):
                local = param.to_local()
                vars(module)[name] = regrouped(local, grouped[name]) if name in grouped else local

    def hide(module: nn.Module, args: Any, output: Any) -> None:
        for name in module._parameters:
            vars(module).pop(name, None)

    owner.register_forward_pre_hook(show)
    owner.register_forward_hook(hide, always_call=True)


def _reduce_over(owners: list[nn.Module], mesh: DeviceMesh, asked: str) -> None:
    """Name the mesh of the statistics on every module with weights that can be quantised."""
    gemms = [owner for owner in owners if is_gemm(owner)]
    if not gemms:
        warnings.warn(
            f"weight_mesh has no effect on {asked}: it has no quantised weights", stacklevel=3
        )
    for owner in gemms:
        vars(owner)["weight_mesh"] = mesh
        for quantizer in _quantizers(owner):
            quantizer.amax_reduction_group = mesh.get_group()
            quantizer.with_amax_reduction = True


def _quantizers(owner: nn.Module) -> Iterator[Any]:
    """The quantizers of weights that are quantised already and take statistics of a tensor."""
    for param in owner._parameters.values():
        local = param.to_local() if isinstance(param, DTensor) else param
        quantizer = getattr(local, "quantizer" if is_grouped(local) else "_quantizer", None)
        if hasattr(quantizer, "amax_reduction_group"):
            yield quantizer
