"""Giving memory to a model that was built on the `meta` device, each process its own shards.

Parameters and buffers that are one object under two names stay one, and keep what frameworks say of them.
Buffers that no checkpoint holds are computed by the model's own initialisation, where it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from intarsia.live.loading.passing_buffers import compute_buffers, passing_buffers
from intarsia.live.model.holding import is_dtensor
from intarsia.live.model.own_tensors import every_tensor, named_tensors, own_tensors

_given: Any = WeakTensorKeyDictionary()
"""Tensors with memory of ours and nothing in it, by the version that they had: of a load that was refused."""


def is_empty(x: torch.Tensor) -> bool:
    """Whether a tensor is on `meta`, or has had nothing but memory since."""
    return x.is_meta or bool(_given and x in _given and _given[x] == x._version)


def mark_filled(model: nn.Module) -> None:
    """Take note that a load has come to its end."""
    for x in every_tensor(model) if _given else ():
        _given.pop(x, None)


def names_on_meta(model: nn.Module) -> list[str]:
    """The parameters and lasting buffers that hold nothing, by their full names."""
    if not _given and not any(x.is_meta for x in every_tensor(model)):
        return []  # most models, whose names are not asked for then
    return [name for name, x in named_tensors(model, remove_duplicate=False) if is_empty(x)]


def materialise(model: nn.Module, device: Any = None) -> list[str]:
    """Memory for every meta tensor that a checkpoint fills; the names of buffers left on `meta`."""
    if not any(x.is_meta for x in every_tensor(model)):
        return []
    had = {id(x) for x in every_tensor(model) if not x.is_meta}
    modules = [*model.modules()]
    shared, attributes_of, hooks_of = _shared(modules), _attributes(modules), _hooks(modules)
    lasting = {id(x) for module in modules for _, x in own_tensors(module)}
    passing = [(m, k) for _, m, k in passing_buffers(model) if id(m._buffers[k]) not in lasting]
    # Now, while the parameters have no memory yet that would have to be hidden.
    compute_buffers(model, passing, device or _device_of(model))
    left = {id(m._buffers[k]) for m, k in passing}

    def memory(x: torch.Tensor) -> torch.Tensor:
        if not x.is_meta or id(x) in left:
            return x
        where = device or _mesh_device(x) or "cpu"
        if type(x) in (torch.Tensor, nn.Parameter) and x.is_contiguous():
            return torch.empty(x.shape, dtype=x.dtype, device=where)  # `empty_like` is Python here
        return torch.empty_like(x, device=where)

    with torch.no_grad():
        if not _give(modules, memory):
            model._apply(memory)  # type: ignore[no-untyped-call]
        for (owner, key), *others in shared:
            for held, name in others:
                held[name] = owner[key]
        for module, name, attributes in attributes_of:
            vars(module._parameters[name]).update(attributes)
        for module, name, hooks in hooks_of:
            for kind, found in hooks.items():
                setattr(module._parameters[name], kind, found)
    made = (x for x in every_tensor(model) if id(x) not in had)
    _given.update((x, x._version) for x in made if not x.is_inference())  # those have no version
    return [name for name, m, k in passing_buffers(model) if m._buffers[k].is_meta]  # type: ignore[union-attr]


def _give(modules: Sequence[nn.Module], memory: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Do what `_apply` does where it is torch's own and parameters are plain, in a third of its time; whether they are."""
    params = [p for module in modules for p in module._parameters.values() if p is not None]
    if {type(module)._apply for module in modules} != {nn.Module._apply}:
        return False
    if any(type(p) is not nn.Parameter or p.grad is not None for p in params):
        return False
    for module in modules:
        for key, p in module._parameters.items():
            if p is not None and p.is_meta:
                module._parameters[key] = nn.Parameter(memory(p), p.requires_grad)
        for key, x in module._buffers.items():
            if x is not None:
                module._buffers[key] = memory(x)
    return True


def _mesh_device(x: torch.Tensor) -> str | None:
    return getattr(getattr(x, "device_mesh", None), "device_type", None)


def _device_of(model: nn.Module) -> str:
    """Where the shards of a model are."""
    return next((where for x in every_tensor(model) if (where := _mesh_device(x))), "cpu")


def _shared(modules: Sequence[nn.Module]) -> list[list[tuple[dict[str, Any], str]]]:
    """The places of every tensor that has more than one, those among parameters first."""
    places: dict[int, list[tuple[dict[str, Any], str]]] = {}
    tables: list[dict[str, Any]] = [module._parameters for module in modules]
    for held in (*tables, *(module._buffers for module in modules)):
        for key, x in held.items():
            if x is not None and x.is_meta:
                places.setdefault(id(x), []).append((held, key))
    return [found for found in places.values() if len(found) > 1]


def _attributes(modules: Sequence[nn.Module]) -> list[tuple[nn.Module, str, dict[str, Any]]]:
    """What frameworks hang on plain parameters (how Megatron cuts them, say), by their places."""
    return [
        (module, key, dict(vars(param)))
        for module in modules
        for key, param in module._parameters.items()
        if param is not None and param.is_meta and not is_dtensor(param) and vars(param)
    ]


_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""What is called with a parameter's gradient; the handles of hooks remove them from these dicts."""


def _hooks(modules: Sequence[nn.Module]) -> list[tuple[nn.Module, str, dict[str, Any]]]:
    """The hooks of parameters on `meta`, by their places."""
    return [
        (module, key, hooks)
        for module in modules
        for key, param in module._parameters.items()
        if param is not None
        and param.is_meta
        and (hooks := {kind: x for kind in _HOOKS if (x := getattr(param, kind))})
    ]
