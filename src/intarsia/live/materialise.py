"""Giving memory to a model that was built on the `meta` device, each process its own shards.

Parameters and buffers that are one object under two names stay one, and keep what frameworks say of them.
Buffers that no checkpoint holds (rotary frequencies) are computed by the model's own
initialisation, where it has one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from intarsia.live.holding import is_dtensor

if TYPE_CHECKING:
    import torch
    from torch import nn


def materialise(model: nn.Module, device: Any = None) -> list[str]:
    """Memory for every meta tensor that a checkpoint fills; the names of buffers left on `meta`."""
    import torch

    if not any(x.is_meta for x in _tensors(model)):
        return []
    shared, told = _shared(model), _told(model)
    passing = {id(x) for _, _, x in _passing_buffers(model)} - _lasting(model)

    def memory(x: torch.Tensor) -> torch.Tensor:
        if not x.is_meta or id(x) in passing:
            return x
        where = device or getattr(getattr(x, "device_mesh", None), "device_type", "cpu")
        return torch.empty_like(x, device=where)

    with torch.no_grad():
        model._apply(memory)  # type: ignore[no-untyped-call]
        for places in shared:
            (owner, key), *others = places
            for module, name in others:
                if key in owner._parameters:
                    module._parameters[name] = owner._parameters[key]
                else:
                    module._buffers[name] = owner._buffers[key]
        for module, name, attributes in told:
            vars(module._parameters[name]).update(attributes)
        _compute_buffers(model, device)
    return [name for name, _, x in _passing_buffers(model) if x.is_meta]


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """Every tensor of a model; Megatron's wrapper has something else under the name `buffers`."""
    for module in model.modules():
        for x in (*module._parameters.values(), *module._buffers.values()):
            if x is not None:
                yield x


def _shared(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """The places of every parameter and of every buffer that has more than one."""
    places: dict[tuple[int, bool], list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for key, x in held.items():
                if x is not None and x.is_meta:
                    kind = id(x), held is module._parameters
                    places.setdefault(kind, []).append((module, key))
    return [found for found in places.values() if len(found) > 1]


def _lasting(model: nn.Module) -> set[int]:
    """The buffers that are in a state dict, under any of their names."""
    return {
        id(x)
        for module in model.modules()
        for key, x in module._buffers.items()
        if key not in module._non_persistent_buffers_set
    }


def _told(model: nn.Module) -> list[tuple[nn.Module, str, dict[str, Any]]]:
    """What frameworks hang on plain parameters (how Megatron cuts them, say), by their places."""
    return [
        (module, key, dict(vars(param)))
        for module in model.modules()
        for key, param in module._parameters.items()
        if param is not None and param.is_meta and not is_dtensor(param) and vars(param)
    ]


def _passing_buffers(model: nn.Module) -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    """The buffers that are in no state dict."""
    for path, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is not None and key in module._non_persistent_buffers_set:
                yield f"{path}.{key}" if path else key, module, buffer


def _compute_buffers(model: nn.Module, device: Any) -> None:
    """Have a Transformers model compute its passing buffers; each must really be written."""
    import torch

    initialise = getattr(model, "_init_weights", None)
    todo = {m for _, m, x in _passing_buffers(model) if x.is_meta}
    if initialise is None:
        return
    for module in todo:
        if next(module.parameters(recurse=False), None) is not None:
            continue  # initialising it would draw its weights anew
        before = {k: b for k, b in module._buffers.items() if b is not None and b.is_meta}
        for key, buffer in before.items():
            mark = float("nan") if buffer.is_floating_point() else _mark(buffer.dtype)
            module._buffers[key] = torch.full_like(buffer, mark, device=device or "cpu")
        initialise(module)
        for key, buffer in before.items():
            made: Any = module._buffers[key]
            unset = made.isnan() if made.is_floating_point() else made == _mark(made.dtype)
            if made.numel() and bool(unset.all()):
                module._buffers[key] = buffer


def _mark(dtype: torch.dtype) -> int:
    import torch

    return 1 if dtype == torch.bool else torch.iinfo(dtype).max
