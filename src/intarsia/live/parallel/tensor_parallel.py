"""Dense layers under tensor parallelism, as the model's own plan asks.

A plan is data: module names, with `*` for a number, and the style of each.  The table below says
what a style does to a layer; the layer itself computes on DTensors, so torch finds the
collectives.  Parameters are cut where they are: no rank receives another's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, cat, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from intarsia.errors import UsageError
from intarsia.live.parallel.collectives import local_part, shared

Plan = Mapping[str, str]


@dataclass(frozen=True)
class Style:
    """How a layer is cut, how its input comes and is wanted, and how its output leaves."""

    weight: Placement
    bias: Placement
    given: Placement
    wanted: Placement
    output: Placement


WHOLE, ROWS, COLUMNS, FEATURES = Replicate(), Shard(0), Shard(1), Shard(-1)

STYLES = {
    "colwise": Style(ROWS, ROWS, WHOLE, WHOLE, FEATURES),
    "colwise_gather_output": Style(ROWS, ROWS, WHOLE, WHOLE, WHOLE),
    "colwise_rep": Style(ROWS, ROWS, WHOLE, WHOLE, WHOLE),
    "rowwise": Style(COLUMNS, WHOLE, FEATURES, FEATURES, WHOLE),
    "rowwise_split_input": Style(COLUMNS, WHOLE, WHOLE, FEATURES, WHOLE),
    "rowwise_rep": Style(COLUMNS, WHOLE, WHOLE, FEATURES, WHOLE),
    "embedding_rowwise": Style(ROWS, WHOLE, WHOLE, WHOLE, WHOLE),
    "embedding_colwise": Style(COLUMNS, WHOLE, WHOLE, WHOLE, WHOLE),
}  # fmt: skip
"""Layers whose weight is cut."""

EXPERTS = "moe_tp_experts"
NORM, LATENT = "replicated_with_grad_allreduce", "mla_kv_a_proj"
PER_HEAD = "a number per head"
WHOLE_STYLES = {NORM, LATENT, "replicate"}
"""Layers that every rank holds whole."""

BEHIND = {"q_norm": "q_proj", "k_norm": "k_proj", "act_fn": "up_proj"}
"""Layers that, if they have parameters, see no more than what the projection before them gives."""


@dataclass(frozen=True)
class PlannedModule:
    """A module that the plan names."""

    name: str
    module: nn.Module
    style: str
    rotary: int = 0
    """How many features at the end of a latent projection are rotated."""


def style_of(plan: Plan, name: str) -> str | None:
    """What a plan says of a module or a parameter.

    >>> style_of({"layers.*.mlp.up_proj": "colwise"}, "layers.3.mlp.up_proj")
    'colwise'
    """
    return plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))


def layers_of(model: nn.Module, size: int) -> list[PlannedModule]:
    """The dense layers that the model's plan cuts over `size` ranks, compared with the table.

    Expert modules, and what is below them, are not among them.
    """
    plan: Plan = getattr(model, "tp_plan", None) or {}
    names = (name for name, _ in model.named_modules() if style_of(plan, name) == EXPERTS)
    inside = tuple(f"{name}." for name in names)
    rotary = getattr(_config(model), "qk_rope_head_dim", 0)
    found = []
    for name, module in model.named_modules():
        style = style_of(plan, name)
        if style == EXPERTS or name.startswith(inside):
            continue
        style = style or _unlisted(plan, name, module) or _own_style(plan, name, module, size)
        if style is None or _is_empty(module):
            continue
        layer = PlannedModule(name, module, style, rotary)
        _check(layer, size)
        found.append(layer)
    if not any(re.search(r"\.\d+\.", layer.name) for layer in found):
        raise UsageError(
            f"{type(model).__name__} has no tensor-parallel plan for its layers",
            hint="use its ranks for ep or fsdp, or set `model.tp_plan`",
        )
    _check_heads(model, plan, size)
    return found


def cut_layers(layers: list[PlannedModule], mesh: DeviceMesh) -> None:
    """Cut the parameters of these layers, and let their forward take and give plain tensors."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for layer in layers:
        if layer.style == PER_HEAD:
            _cut_own(layer.module, mesh)
            continue
        if (style := STYLES.get(layer.style)) is None:
            _keep_whole(layer, mesh)
            continue
        for name, param in list(layer.module.named_parameters(recurse=False)):
            if param not in made:  # tied weights stay tied
                made[param] = cut_parameter(
                    param, mesh, style.bias if name == "bias" else style.weight
                )
            layer.module.register_parameter(name, made[param])
        layer.module.forward = _on_shards(layer.module.forward, style, mesh)


def cut_parameter(param: nn.Parameter, mesh: DeviceMesh, *placements: Placement) -> nn.Parameter:
    """This rank's part of a parameter that it holds whole, on `meta` too."""
    part = distribute_tensor(param.detach(), mesh, placements, src_data_rank=None)
    return nn.Parameter(part, requires_grad=param.requires_grad)


@contextmanager
def seen_as(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """For the time of a forward, the module's own parameters in another form."""
    held = {name: p for name, p in module._parameters.items() if p is not None}
    module._parameters.update({name: change(p) for name, p in held.items()})  # type: ignore[misc]
    try:
        yield
    finally:
        module._parameters.update(held)


def _on_shards(forward: Callable[..., Any], style: Style, mesh: DeviceMesh) -> Callable[..., Any]:
    def on_shards(x: Tensor) -> Tensor:
        placed = DTensor.from_local(x, mesh, [style.given], run_check=False)
        y = forward(placed.redistribute(mesh, [style.wanted]))
        return local_part(y.redistribute(mesh, [style.output]))

    return on_shards


def _keep_whole(layer: PlannedModule, mesh: DeviceMesh) -> None:
    """Layers that hold all their weights, and see a part of what these are used for."""
    module, forward, group = layer.module, layer.module.forward, mesh.get_group()

    def on_own_heads(*args: Any, **kwargs: Any) -> Any:
        with seen_as(module, lambda p: shared(p, [group])):
            return forward(*args, **kwargs)

    def rotary_for_all(*args: Any, **kwargs: Any) -> Tensor:
        latent, rotary = forward(*args, **kwargs).tensor_split([-layer.rotary], dim=-1)
        return cat([latent, shared(rotary, [group])], dim=-1)

    if layer.style == NORM:
        module.forward = on_own_heads
    elif layer.style == LATENT:
        module.forward = rotary_for_all


def _cut_own(module: nn.Module, mesh: DeviceMesh) -> None:
    forward = module.forward
    for name, param in list(module.named_parameters(recurse=False)):
        module.register_parameter(name, cut_parameter(param, mesh, ROWS))

    def on_own_heads(*args: Any, **kwargs: Any) -> Any:
        with seen_as(module, lambda p: p.to_local() if isinstance(p, DTensor) else p):
            return forward(*args, **kwargs)

    module.forward = on_own_heads


def _unlisted(plan: Plan, name: str, module: nn.Module) -> str | None:
    """Norms and activations that see a rank's own features, also where a plan forgets them."""
    parent, _, child = name.rpartition(".")
    after = style_of(plan, f"{parent}.{BEHIND[child]}") if child in BEHIND else None
    return NORM if after == "colwise" and any(True for _ in module.parameters()) else None


def _own_style(plan: Plan, name: str, module: nn.Module, size: int) -> str | None:
    """How a block's own parameters are cut, which lie beside its layers: one number per head."""
    own = dict(module.named_parameters(recurse=False))
    styles = {p: style_of(plan, f"{name}.{p}") for p in own}
    cuts = any(style_of(plan, f"{name}.{n}") == "colwise" for n, _ in module.named_children())
    if not own or not (cuts or any(styles.values())):
        return None
    for p, style in styles.items():
        where = f"{name}.{p} {tuple(own[p].shape)}"
        if style is None:
            raise UsageError(
                f"{where} is among parameters that the tensor-parallel plan shards, and the plan"
                " does not say how to shard it",
                hint="use these ranks for fsdp",
            )
        if style != "colwise" or own[p].ndim != 1 or own[p].shape[0] % size:
            raise UsageError(f"{where} cannot be cut over {size} ranks in the style {style!r}")
    return PER_HEAD


def _check(layer: PlannedModule, size: int) -> None:
    where = f"{layer.name} ({type(layer.module).__name__})"
    style = STYLES.get(layer.style)
    if style is None:
        if layer.style not in {*WHOLE_STYLES, PER_HEAD}:
            raise UsageError(
                f"{where} has the tensor-parallel style {layer.style!r}, which is not known",
                hint=f"known: {', '.join(sorted({*STYLES, *WHOLE_STYLES, EXPERTS}))}",
            )
        return
    if not isinstance(layer.module, nn.Linear | nn.Embedding):
        raise UsageError(f"{where} is no linear layer or embedding: {layer.style!r} cannot cut it")
    width = layer.module.weight.shape[0 if style.weight == ROWS else 1]
    if FEATURES in (style.given, style.output) and width % size:
        raise UsageError(f"{where}: {width} features do not divide over {size} ranks")


def _is_empty(module: nn.Module) -> bool:
    """Whether it has parameters without an element, as those of no shared expert are: nothing is to be cut."""
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(p.numel() for p in own)


def _check_heads(model: nn.Module, plan: Plan, size: int) -> None:
    """A rank computes whole heads, wherever the plan leaves projections cut."""
    config = _config(model)
    for field, tail in (("num_attention_heads", "q_proj"), ("num_key_value_heads", "k_proj")):
        count = getattr(config, field, None)
        cuts = any(key.endswith(tail) and style == "colwise" for key, style in plan.items())
        if cuts and isinstance(count, int) and count % size:
            raise UsageError(f"{field} = {count} does not divide over {size} tensor-parallel ranks")


def _config(model: nn.Module) -> Any:
    return model.config.get_text_config()  # type: ignore[operator, union-attr]
