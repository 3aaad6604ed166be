"""Megatron-FSDP's live parameters and optimizer states: split, check, load.

    items = {name: Item.of(param) for name, param in model.named_parameters()}
    for name in gated_names(model):                       # layer by layer, not by one flag
        halves = split_state(states[f"{name}.weight"], items[f"{name}.weight"],
                             gated(items[f"{name}.weight"]))

`intarsia.live.megatron.item` has the coordinates; loading is in `intarsia.live.megatron_load`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from intarsia.errors import LayoutError
from intarsia.live.megatron.item import (
    GDN,
    Item,
    Part,
    Sizes,
    components,
    gated,
    local_elements,
    merge,
    parts_of,
    split,
)
from intarsia.live.model.holding import is_dtensor, memory_of
from intarsia.live.model.own_tensors import joined


def split_state(state: Mapping[str, Any], item: Item, sizes: Sizes) -> dict[str, dict[str, Any]]:
    """The optimizer state of a fused parameter as that of its components.

    Tensors with the rank's elements are cut, counters and other values are given to each.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in sizes}
    for kind, value in state.items():
        if _axes(value):
            for part in split(value, item, sizes):
                found[part.name][kind] = part
        else:
            for own in found.values():
                own[kind] = value
    return found


def gated_names(model: Any) -> set[str]:
    """The names of a model's gated first projections, found layer by layer from their own settings."""
    found = set()
    for name, module in model.named_modules():
        config = getattr(module, "config", None)
        if getattr(module, "linear_fc1", None) is None or config is None:
            continue
        if getattr(config, "gated_linear_unit", False):
            found.add(joined(name, "linear_fc1"))
    return found


def check_distributed(states: Mapping[str, Mapping[str, Any]], items: Mapping[str, Item]) -> None:
    """Raise where a state is a plain tensor with only a part of its parameter.

    DCP takes a plain tensor for a copy that every rank has: it keeps one rank's part, and loses
    the others without a word.
    """
    faults = [
        (name, kind, value)
        for name, state in states.items()
        for kind, value in state.items()
        if name in items
        and _axes(value)
        and not is_dtensor(value)
        and tuple(value.shape) != items[name].whole
    ]
    if faults:
        name, kind, value = faults[0]
        raise LayoutError(
            f"{len(faults)} states are plain tensors that hold a part of their parameter: `{kind}`"
            f" of `{name}` has {list(value.shape)} of {list(items[name].whole)}",
            hint="DCP would keep one rank's part; wrap them as DTensors of their parameter first",
        )


def is_rounded_to_bf16(tensor: Any) -> bool:
    """Whether every number of an fp32 tensor is a bf16 number: the lower 16 bits are all zero."""
    local = memory_of(tensor)
    if local.dtype != torch.float32:
        raise LayoutError(f"main weights are float32, this tensor is {local.dtype}")
    return not bool((local.contiguous().view(torch.int32) & 0xFFFF).any())


def rounded_masters(tensors: Iterable[tuple[str, Any]]) -> list[str]:
    """The names of fp32 main weights that are bf16 numbers; one number alone says nothing.

    Where it is all of them, main weights were filled from bf16 ones and their precision is lost.
    """
    return [name for name, x in tensors if _varied(x) and is_rounded_to_bf16(x)]


def _varied(tensor: Any) -> bool:
    """Whether a tensor holds more than one number: a norm of ones is exact in any type."""
    local = memory_of(tensor)
    return local.numel() > 1 and bool((local != local.reshape(-1)[0]).any())


def _axes(value: Any) -> int:
    """How many axes a tensor has; none where a value is a number or no tensor at all."""
    found: int = getattr(value, "ndim", 0)
    return found


__all__ = [
    "GDN",
    "Item",
    "Part",
    "Sizes",
    "check_distributed",
    "components",
    "gated",
    "gated_names",
    "is_rounded_to_bf16",
    "local_elements",
    "merge",
    "parts_of",
    "rounded_masters",
    "split",
    "split_state",
]
