"""Experts that are dealt out to the ranks of a mesh, and tokens that go to where they are.

A rank holds some experts of a layer (`ep`), or a part of each (`tp`), as one DTensor per stacked
parameter.  In a forward the parameters are unwrapped once; each (token, expert) pair travels to
the rank of its expert, runs through the module's own forward there, and travels back.

The gradient of an expert sums what the tokens of all ranks ask of it, where FSDP averages over
ranks: so it is divided, on its way to the parameter, by the ranks that FSDP does not see.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from intarsia.errors import UsageError
from intarsia.live.parallel.collectives import exchanged, shared, summed
from intarsia.live.parallel.roles import Roles
from intarsia.live.parallel.tensor_parallel import EXPERTS, cut_parameter, seen_as, style_of

DEALT = "grouped_gemm"
"""The style of a stacked parameter whose first axis counts experts."""

CUTS: dict[str, Placement] = {
    "colwise": Shard(1),
    "rowwise": Shard(2),
    "packed_colwise": _StridedShard(1, split_factor=2),
    "packed_rowwise": _StridedShard(2, split_factor=2),
}
"""How tensor parallelism cuts stacked parameters; packed: the halves of a gate and its twin."""

Forward = Callable[..., Tensor]


@dataclass(frozen=True)
class Experts:
    """One layer's experts: how `tp` cuts each parameter, and along which axis FSDP does."""

    name: str
    module: nn.Module
    tp: dict[str, Placement]
    axes: dict[str, int]


def expert_modules(model: nn.Module, roles: Roles, axis: int | None = None) -> list[Experts]:
    """The expert modules that the model's plans name, each checked against the mesh.

    `axis` is the one along which FSDP shall cut, None the usual.
    """
    # Transformers 5.17 keeps the plan of experts to itself.
    plan = getattr(model, "ep_plan", None) or getattr(model, "_ep_plan", None)
    dealing = (plan or {}) if roles.ep else {}
    cutting = (getattr(model, "tp_plan", None) or {}) if roles.tp else {}
    found = []
    for name, module in model.named_modules():
        own = {p: f"{name}.{p}" for p, _ in module.named_parameters(recurse=False)}
        dealt = [p for p, full in own.items() if style_of(dealing, full) == DEALT]
        is_cut = style_of(cutting, name) == EXPERTS
        if dealt:
            _check_dealt(name, module, dealt, roles)
        if dealt or is_cut:
            tp = _cuts(name, module, cutting, roles) if is_cut else {}
            axes = {p: _fsdp_axis(full, module, tp.get(p), axis, roles) for p, full in own.items()}
            found.append(Experts(name, module, tp, axes))
    if roles.ep and not any(style_of(dealing, f"{e.name}.{p}") for e in found for p in _own(e)):
        raise UsageError(
            f"{type(model).__name__} has no expert-parallel plan, and the mesh has "
            f"{roles.size(roles.ep)} ranks for experts",
            hint="use them for fsdp",
        )
    return found


def place(experts: Experts, roles: Roles, *, further: bool) -> None:
    """Make the parameters DTensors, and let the forward go to where the experts are.

    `further`: FSDP cuts them over the remaining ranks, and averages; else these hold copies.
    """
    copies = [] if further or not roles.ep else [n for n in (roles.replicate, roles.fsdp) if n]
    mesh = roles.over(*copies, roles.ep, roles.tp)
    assert mesh is not None
    ahead: list[Placement] = [Replicate()] * len(copies) + [Shard(0)] * bool(roles.ep)
    for name in _own(experts):
        behind = [experts.tp.get(name, Replicate())] if roles.tp else []
        param = getattr(experts.module, name)
        experts.module.register_parameter(name, cut_parameter(param, mesh, *ahead, *behind))
    if roles.ep:
        experts.module.num_experts //= roles.size(roles.ep)  # type: ignore[operator, assignment]
    experts.module.forward = _forward(experts, roles, copies)


def _forward(experts: Experts, roles: Roles, copies: list[str]) -> Forward:
    module, run = experts.module, experts.module.forward
    mesh = roles.mesh
    copied = [mesh.get_group(name) for name in copies]
    scale = 1.0 / roles.size(*copies, roles.ep)
    across = mesh.get_group(roles.tp) if roles.tp and experts.tp else None

    def forward(hidden: Tensor, *routing: Tensor) -> Tensor:
        def unwrap(p: Tensor) -> Tensor:
            local = p.to_local() if isinstance(p, DTensor) else p
            return shared(local.to(hidden.dtype), copied, scale=scale)

        x, rest = hidden, list(routing)
        if across is not None:
            x = shared(x, [across])
            rest = [shared(y, [across]) if y.is_floating_point() else y for y in rest]
        with seen_as(module, unwrap):
            if roles.ep:
                y = dealt_out(run, x, *rest, count=_count(module), group=mesh.get_group(roles.ep))
            else:
                y = run(x, *rest)
        return y if across is None else summed(y, across)

    return forward


def dealt_out(
    run: Forward, hidden: Tensor, index: Tensor, weights: Tensor, *, count: int, group: ProcessGroup
) -> Tensor:
    """`run` on the rank of each expert: tokens go there, and their results come back weighted.

    `index` and `weights` have a row per token; rank r of the group holds the `count` experts
    from r * count on.
    """
    size, chosen = dist.get_world_size(group), index.reshape(-1)
    order = chosen.argsort(stable=True)
    to = torch.bincount(chosen, minlength=size * count).reshape(size, count)
    of = torch.empty_like(to)
    dist.all_to_all_single(of, to, group=group)
    sent, got = to.sum(1).tolist(), of.sum(1).tolist()
    rows = exchanged(hidden[order // index.shape[-1]], sent, got, group)
    own = torch.arange(count, device=index.device).repeat(size).repeat_interleave(of.reshape(-1))
    done = exchanged(_run_rows(run, rows, own), got, sent, group)
    back = torch.empty_like(order).index_copy_(
        0, order, torch.arange(len(order), device=order.device)
    )
    placed = done[back].reshape(*weights.shape, -1)
    return (placed * weights.unsqueeze(-1)).sum(1).to(hidden.dtype)


def _run_rows(run: Forward, rows: Tensor, experts: Tensor) -> Tensor:
    """One expert per row; a row of zeros stands in for none, so that parameters get a gradient."""
    if len(rows):
        return run(rows, experts[:, None], rows.new_ones(len(rows), 1))
    nothing = rows.sum(0, keepdim=True)
    return run(nothing, experts.new_zeros(1, 1), rows.new_ones(1, 1))[:0]


def _own(experts: Experts) -> list[str]:
    return [name for name, _ in experts.module.named_parameters(recurse=False)]


def _count(module: nn.Module) -> int:
    return int(module.num_experts)  # type: ignore[arg-type]


def _check_dealt(name: str, module: nn.Module, dealt: list[str], roles: Roles) -> None:
    where, size = f"{name} ({type(module).__name__})", roles.size(roles.ep)
    if left := sorted({p for p, _ in module.named_parameters()} - set(dealt)):
        raise UsageError(f"the expert-parallel plan leaves out {', '.join(left)} of {where}")
    takes = [p.name for p in inspect.signature(module.forward).parameters.values()]
    if len(takes) != 3 or not hasattr(module, "num_experts"):
        raise UsageError(
            f"{where} takes ({', '.join(takes)}), not tokens with the experts chosen for each: "
            "its tokens cannot be sent to their experts",
            hint="leave its ranks to fsdp or tp",
        )
    count = _count(module)
    if count % size:
        raise UsageError(
            f"{count} experts of {where} do not divide over {size} expert-parallel ranks",
            hint=f"an ep of {_divisors(count)}",
        )


def _divisors(count: int) -> str:
    return ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)


def _fsdp_axis(
    name: str, module: nn.Module, tp: Placement | None, asked: int | None, roles: Roles
) -> int:
    """The axis along which FSDP cuts a stacked parameter.

    The first, unless EP cuts it and TP cuts another into halves: torch cannot put such a tensor
    together again, so the axis that neither cuts is taken.
    """
    if asked not in (None, 0, 1, 2):
        raise UsageError(f"expert_axis={asked}: the axes of stacked experts are 0, 1 or 2")
    shape = module.get_parameter(name.rpartition(".")[2]).shape
    cut_by_tp = getattr(tp, "dim", None)
    halves = isinstance(tp, _StridedShard)
    if asked is None or asked >= len(shape):
        return 3 - cut_by_tp if halves and roles.ep and cut_by_tp else 0
    free = [axis for axis in range(len(shape)) if axis not in (0, cut_by_tp)]
    if halves and asked not in free:
        raise UsageError(
            f"expert_axis={asked}: {name} is cut along {cut_by_tp} in halves by tp, and along 0 by ep",
            hint=f"leave it out, or take {' or '.join(map(str, free))}",
        )
    rows = shape[asked] // (roles.size(roles.tp) if asked == cut_by_tp else 1)
    if asked and rows % roles.size(roles.fsdp):
        raise UsageError(
            f"expert_axis={asked}: {rows} rows of {name} do not divide over "
            f"{roles.size(roles.fsdp)} ranks",
            hint="leave it out, which cuts between experts",
        )
    return asked


def _cuts(name: str, module: nn.Module, plan: dict[str, str], roles: Roles) -> dict[str, Placement]:
    size, found = roles.size(roles.tp), {}
    for p, param in module.named_parameters(recurse=False):
        style = style_of(plan, f"{name}.{p}")
        if style is None:
            continue
        if style not in CUTS or param.ndim != 3:
            raise UsageError(
                f"{name}.{p} has the tensor-parallel style {style!r} and {param.ndim} axes",
                hint=f"stacked experts have 3, and one of {', '.join(CUTS)}",
            )
        placement = CUTS[style]
        width = param.shape[placement.dim]  # type: ignore[attr-defined]
        parts = size * getattr(placement, "split_factor", 1)
        if width % parts:
            raise UsageError(
                f"{name}.{p}: {width} rows do not divide into {parts} parts over {size} ranks"
            )
        found[p] = placement
    return found
