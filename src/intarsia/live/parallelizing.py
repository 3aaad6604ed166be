"""A Transformers model on a mesh: tensor-parallel layers, dealt-out experts, FSDP2 over the rest.

Everything is checked before anything is cut.  Then each rank takes its own part of the weights
that it holds, or of none on `meta`; afterwards the parameters alone say how they lie, as DTensors.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from intarsia.errors import UsageError, check_flags, few
from intarsia.live.parallel.agreement import assert_same_model
from intarsia.live.parallel.experts import Experts, expert_modules, place
from intarsia.live.parallel.features_apart import check_features_apart
from intarsia.live.parallel.prepared import mark_placed
from intarsia.live.parallel.roles import EP, FSDP, TP, Roles, remember
from intarsia.live.parallel.tensor_parallel import cut_layers, layers_of

Model = TypeVar("Model", bound=nn.Module)


def parallelize(
    model: Model,
    mesh: DeviceMesh,
    *,
    tp: str | None = TP,
    ep: str | None = EP,
    fsdp: str | None = FSDP,
    replicate: str | None = None,
    expert_fsdp: bool = True,
    expert_axis: int | None = None,
    reshard_after_forward: bool = True,
    mp_policy: MixedPrecisionPolicy | None = None,
) -> Model:
    """Put a Transformers model on a mesh, in place; collective over the ranks of the mesh.

    `tp`, `ep`, `fsdp` and `replicate` name dimensions of the mesh, in the order replicate, fsdp,
    ep, tp; `None` is unused, and a default name that the mesh lacks is unused too.  Experts are
    dealt out over `ep`; `expert_fsdp` cuts them further over `fsdp`, along `expert_axis` of
    the stacked tensor (left out: between experts).  Everything else is cut over `fsdp` and
    `ep` together, so every rank along both has data of its own (see `batch_place`).

        mesh = init_device_mesh("cuda", (4, 8), mesh_dim_names=("dp", "ep"))
        model = parallelize(AutoModelForCausalLM.from_config(config), mesh)
    """
    check_flags(expert_fsdp=expert_fsdp)
    for name, given, kind in (("model", model, nn.Module), ("mesh", mesh, DeviceMesh)):
        if not isinstance(given, kind):
            raise UsageError(
                f"`{name}` is {given!r} of type {type(given).__name__}",
                hint=f"give a torch {kind.__name__}, as in parallelize(model, init_device_mesh(...))",
            )
    roles = Roles.of(mesh, tp=tp, ep=ep, fsdp=fsdp, replicate=replicate)
    _refuse_parallel(model)
    experts = expert_modules(model, roles, expert_axis)
    layers = layers_of(model, roles.size(roles.tp)) if roles.tp else []
    check_features_apart(model, layers, roles.size(roles.tp) if roles.tp else 1)
    units = _units(model) if roles.dense is not None else []
    assert_same_model(model, mesh)

    options: dict[str, Any] = {"reshard_after_forward": reshard_after_forward}
    if mp_policy is not None:
        options["mp_policy"] = mp_policy
    further = expert_fsdp and roles.fsdp is not None
    if roles.tp:
        cut_layers(layers, mesh[roles.tp])
    for found in experts:
        place(found, roles, further=further)
    if roles.dense is not None:
        _shard(model, units, experts if roles.ep else [], roles, further, options)
        # Ranks must generate in step: a rank that is done earlier still serves the others.
        model._is_fsdp_managed_module = True  # type: ignore[assignment]
    mark_placed(model)
    remember(roles)
    return model


def _shard(
    model: nn.Module,
    units: list[nn.Module],
    experts: list[Experts],
    roles: Roles,
    further: bool,
    options: dict[str, Any],
) -> None:
    """FSDP2, from the inside out: experts on their own mesh, blocks, embeddings, the rest."""
    own: set[nn.Parameter] = set()
    for found in experts:
        own.update(found.module.parameters())
        if further:
            cuts = {found.module.get_parameter(p): Shard(axis) for p, axis in found.axes.items()}
            fully_shard(
                found.module, mesh=roles.expert, shard_placement_fn=cuts.__getitem__, **options
            )
    left = {p for p in model.parameters() if not p.numel()}  # FSDP fails in the backward pass
    left |= set() if further else own
    for unit in units:
        fully_shard(unit, mesh=roles.dense, ignored_params=left, **options)
    fully_shard(model, mesh=roles.dense, ignored_params=left, **options)


def _units(model: nn.Module) -> list[nn.Module]:
    """What FSDP gathers at a time: blocks and embeddings, but for those of whose parameters others use one."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    if not names:
        raise UsageError(
            f"{type(model).__name__} does not list the classes of its blocks",
            hint="set `model._no_split_modules` to the names of their classes",
        )
    if numbers := [name for name, p in model.named_parameters() if not p.dim()]:
        raise UsageError(
            f"{few(numbers)} of {type(model).__name__} has no axis that FSDP2 could cut",
            hint="make it a parameter of shape [1]",
        )
    users: dict[nn.Parameter, set[nn.Module]] = {}
    for module in model.modules():
        for param in module.parameters(recurse=False):
            users.setdefault(param, set()).add(module)
    embedding = None
    with suppress(NotImplementedError):  # of several, as in a model of pictures and text
        embedding = model.get_input_embeddings()  # type: ignore[operator]
    units, seen = list[nn.Module](), set[nn.Module]()
    for module in model.modules():
        whole = module is embedding and isinstance(module, nn.Embedding)
        if module in seen or not (whole or type(module).__name__ in names):
            continue
        inside = {*module.modules()}
        if all(users[p] <= inside for p in module.parameters()):
            units.append(module)
            seen |= inside
    return units


def _refuse_parallel(model: nn.Module) -> None:
    for name, x in model.named_parameters():
        if isinstance(x, DTensor):
            raise UsageError(
                f"{name} is a DTensor on {x.device_mesh} already",
                hint="parallelize a model whose parameters are whole",
            )
    if not isinstance(next(model.parameters(), None), Tensor):
        raise UsageError(f"{type(model).__name__} has no parameters")
