"""The state that an optimizer holds, as tensors and values to save."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from intarsia.errors import UsageError
from intarsia.format.naming.wrappers import bare
from intarsia.live.model.holding import is_dtensor, is_present, memory_of
from intarsia.live.optimizer.named import NamedOptimizer
from intarsia.live.optimizer.several import check_shared
from intarsia.live.optimizer.stepped import Stepped
from intarsia.live.optimizer.values import is_value, values_of
from intarsia.state.names import SHARED_STATE, StateName


def states(optimizer: NamedOptimizer) -> Iterator[tuple[str, Any]]:
    """The state that an optimizer really has, as far as it is of its parameters' shapes, by name."""
    for each in optimizer.steps:
        value: Any
        axes = each.param.dim()
        for kind, value in optimizer.held.state.get(each.param, {}).items():
            if is_value(value, each.param):
                continue
            name = StateName(kind, bare(each.name)).as_torch
            if axes and value.dim() == 0:
                held = memory_of(value) if is_dtensor(value) else value
                yield name, held if held.is_cpu else held.cpu()
            else:
                yield name, _as_param(value, each)


def never_stepped(optimizer: NamedOptimizer) -> list[str]:
    """The parameters on this rank that an optimizer has no state of."""
    without = (x for x in optimizer.steps if not optimizer.held.state.get(x.param))
    return [bare(each.name) for each in without if each.param.numel() and is_present(each.param)]


def values(optimizer: NamedOptimizer) -> dict[str, bytes]:
    """The rest of the state that an optimizer has, as entries; raise where it is of no parameter."""
    state = optimizer.held.state
    params = [(each.name, each.param) for each in optimizer.steps]
    check_shared([SHARED_STATE + key for key in state if isinstance(key, str)], optimizer.held)
    known = {id(param) for _, param in params}
    if numbers := [name for name, _ in params if name.isdecimal()]:
        raise UsageError(
            f"the parameter `{numbers[0]}` has a number as its name, like torch's numbered states",
            hint="make it a parameter of a submodule, which has a name",
        )
    for key in state:
        if isinstance(key, torch.Tensor) and id(key) not in known:
            raise UsageError(
                f"the optimizer keeps state of a tensor of {list(key.shape)} that is in none of"
                " its groups",
                hint="remove it from `optimizer.state`, or add it to a group",
            )
    return values_of(params, state)


_UNLIKE = (
    "state of another shape can be saved for plain parameters only, because nothing says which"
    " part of it a rank has: save only the model (optimizer=None), or train it unsharded"
)


def _as_param(value: Any, each: Stepped) -> Any:
    """A state with its parameter's shape; a plain one beside a DTensor is the rank's own part."""
    if is_dtensor(value) or not is_dtensor(each.param):
        if value.shape != each.param.shape:
            raise UsageError(
                f"a state of `{each.name}` has shape {list(value.shape)}, the parameter"
                f" {list(each.param.shape)}",
                hint=_UNLIKE,
            )
        return value
    local = memory_of(each.param)
    if tuple(value.shape) != tuple(local.shape):
        raise UsageError(
            f"a plain state of `{each.name}` has shape {list(value.shape)}, its parameter"
            f" {list(local.shape)} on this rank",
            hint=_UNLIKE,
        )
    from torch.distributed.tensor import DTensor

    param: Any = each.param
    return DTensor.from_local(
        value, param.device_mesh, param.placements, shape=param.shape, stride=param.stride()
    )
