"""Fused parameters of Megatron-FSDP and their optimizer states: split, checked, and put together again.

Megatron-FSDP gives a rank a flat slice `[start, stop)` of the flattened tensor-parallel part of
a parameter: its *item coordinates*.  A checkpoint keeps the components of a fused parameter
apart: gate and up of SwiGLU as `_w` and `_v`, a gated delta network's `in_proj` as query, key and
so on.  Where a component ends inside a slice depends on the parameter alone.  What the state is
does not matter: a DTensor counts the elements of all ranks, a plain tensor those of one.

    >>> item = ParameterSlice((4, 3), 2, 11)
    >>> [(part.name, part.start, part.stop) for part in component_slices(item, gated(item))]
    [('_w', 2, 6), ('_v', 0, 5)]

A model's states are split layer by layer, not by one flag; loading is in `intarsia.live.megatron_load`.

    items = {name: ParameterSlice.of(param) for name, param in model.named_parameters()}
    for name in gated_names(model):
        halves = split_state(states[f"{name}.weight"], items[f"{name}.weight"],
                             gated(items[f"{name}.weight"]))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from intarsia.errors import LayoutError
from intarsia.layout import Layout, concat
from intarsia.live.model.holding import is_dtensor, memory_of
from intarsia.live.model.own_tensors import full_name
from intarsia.mesh import Shape

Sizes = Mapping[str, int]
"""How many rows each component of a fused parameter has, in order."""

GDN = ("query", "key", "value", "z", "beta", "alpha")
"""The components of a gated delta network's `in_proj`; its `conv1d` has the first three."""


@dataclass(frozen=True, slots=True)
class ParameterSlice:
    """What a rank holds of a parameter: elements `[start, stop)` of its flattened TP-local part.

    `shape` is that of the TP-local part, all of it; `tp` ranks cut axis `tp_axis` of the whole,
    and this is the `tp_rank`-th of them.
    """

    shape: Shape
    start: int
    stop: int
    tp: int = 1
    tp_axis: int | None = 0
    tp_rank: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop <= prod(self.shape):
            raise LayoutError(
                f"the slice [{self.start}, {self.stop}) leaves a parameter of"
                f" {prod(self.shape):,} elements {list(self.shape)}"
            )

    @staticmethod
    def of(param: Any) -> ParameterSlice:
        """The item of a parameter that Megatron-FSDP made: a DTensor with its slice."""
        held = getattr(param, "megatron_fsdp_slice", None)
        if held is None or not is_dtensor(param):
            raise LayoutError(
                f"a {type(param).__name__} without `megatron_fsdp_slice` is not a parameter of"
                " Megatron-FSDP",
                hint="take it from the wrapped model, with a sharding strategy other than no_shard",
            )
        shape, tp, axis, rank = list(param.shape), 1, None, 0
        word = getattr(getattr(param, "megatron_fsdp_dist_index", None), "tp_dim", "tp")
        names = param.device_mesh.mesh_dim_names or ()
        for at, (name, placement) in enumerate(zip(names, param.placements, strict=False)):
            if name == word and placement.is_shard():
                tp, axis = param.device_mesh.size(at), placement.dim
                rank = param.device_mesh.get_local_rank(at)
        if axis is not None:
            shape[axis] = _share(shape[axis], tp, f"axis {axis} of {list(param.shape)}")
        return ParameterSlice(tuple(shape), held.start, held.stop, tp, axis, rank)

    @property
    def whole(self) -> Shape:
        """The shape of the parameter on all tensor-parallel ranks together."""
        if self.tp_axis is None:
            return self.shape
        axis = self.tp_axis
        return (*self.shape[:axis], self.shape[axis] * self.tp, *self.shape[axis + 1 :])

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class ComponentSlice:
    """A component on this rank: `item` is in the component's own coordinates, `at` is where it
    begins in the rank's slice of the fused parameter."""

    name: str
    item: ParameterSlice
    at: int
    tensor: torch.Tensor | None = None

    @property
    def start(self) -> int:
        return self.item.start

    @property
    def stop(self) -> int:
        return self.item.stop


def gated(item: ParameterSlice) -> Sizes:
    """The halves of a gated projection."""
    rows = item.shape[0]
    if rows % 2:
        raise LayoutError(
            f"a gated projection has two equal halves, {list(item.shape)} has {rows} rows"
            + (f" on each of {item.tp} tensor-parallel ranks" if item.tp > 1 else ""),
            hint="this layer is not gated, or tensor parallelism does not divide it",
        )
    return {"_w": rows // 2, "_v": rows // 2}


def components(item: ParameterSlice, sizes: Sizes) -> Sizes:
    """The rows of named components on one rank; sizes of all ranks together are divided once.

    Sizes that already add up to the TP-local rows are the rank's own, and stay.
    """
    total, rows = sum(sizes.values()), item.shape[0]
    if total == rows:
        return dict(sizes)
    if total != rows * item.tp or item.tp_axis != 0:
        raise LayoutError(
            f"components of {total} rows ({', '.join(f'{k} {n}' for k, n in sizes.items())}) do"
            f" not split {list(item.shape)}, nor {list(item.whole)} on all ranks"
        )
    return {name: _share(n, item.tp, f"component `{name}`") for name, n in sizes.items()}


def _share(n: int, tp: int, what: str) -> int:
    if n % tp:
        raise LayoutError(f"{what} has {n} rows, which {tp} tensor-parallel ranks do not divide")
    return n // tp


def component_slices(item: ParameterSlice, sizes: Sizes) -> list[ComponentSlice]:
    """Where the components of a fused parameter lie in a rank's slice of it."""
    rest = item.shape[1:]
    shapes = {name: (n, *rest) for name, n in sizes.items()}
    fused = concat([Layout.of(name, shape) for name, shape in shapes.items()])
    if fused.shape != item.shape:
        raise LayoutError(f"{dict(sizes)} make {list(fused.shape)}, the item is {list(item.shape)}")
    held = fused.reshape(-1).narrow(0, item.start, item.stop)
    ranges = {p.tensor: (p.at, p.to, p.size) for p in held.pieces}
    found = []
    for name, shape in shapes.items():
        at, start, size = ranges.get(name, (0, 0, 0))
        own = replace(item, shape=shape, start=start, stop=start + size)
        found.append(ComponentSlice(name, own, at))
    return found


def split(state: Any, item: ParameterSlice, sizes: Sizes) -> list[ComponentSlice]:
    """A parameter or a state of it, cut into components; each is a view of the rank's elements.

    A slice that holds whole rows keeps its other axes, any other is flat.
    """
    local = local_elements(state, item)
    found = []
    for part in component_slices(item, sizes):
        flat = local[part.at : part.at + part.item.size]
        row = prod(part.item.shape[1:])
        if row and not (part.start % row or part.stop % row):
            flat = flat.reshape(-1, *part.item.shape[1:])
        found.append(replace(part, tensor=flat))
    return found


def merge(parts: Sequence[ComponentSlice], item: ParameterSlice) -> torch.Tensor:
    """The rank's flat slice of the fused parameter out of its components: `split` undone."""
    expected = component_slices(item, {part.name: part.item.shape[0] for part in parts})
    for part, own in zip(parts, expected, strict=True):
        size = -1 if part.tensor is None else part.tensor.numel()
        if (part.item, part.at, size) != (own.item, own.at, own.item.size):
            raise LayoutError(
                f"`{part.name}` has {size} elements of [{part.start}, {part.stop}), the fused"
                f" slice [{item.start}, {item.stop}) takes [{own.start}, {own.stop})"
            )
    return torch.cat([part.tensor.reshape(-1) for part in parts if part.tensor is not None])


def local_elements(state: Any, item: ParameterSlice) -> torch.Tensor:
    """This rank's elements of a parameter or of a state of it, flat.

    A DTensor must have the parameter's shape, of all ranks or TP-local; a plain tensor must have
    exactly the elements of the rank's slice.
    """
    if is_dtensor(state):
        if tuple(state.shape) not in (item.whole, item.shape):
            raise LayoutError(
                f"a DTensor of shape {list(state.shape)} is not the state of a parameter of"
                f" {list(item.whole)} ({list(item.shape)} on each of {item.tp} ranks)",
                hint="its shape was divided or multiplied by tensor parallelism once too often",
            )
        state = state.to_local()
    flat: torch.Tensor = state.detach().reshape(-1)
    if flat.numel() != item.size:
        raise LayoutError(
            f"{flat.numel():,} elements on this rank, its slice [{item.start}, {item.stop}) of"
            f" {list(item.shape)} has {item.size:,}"
        )
    return flat


def split_state(
    state: Mapping[str, Any], item: ParameterSlice, sizes: Sizes
) -> dict[str, dict[str, Any]]:
    """The optimizer state of a fused parameter as that of its components.

    Tensors with the rank's elements are cut, counters and other values are given to each.
    """
    found: dict[str, dict[str, Any]] = {name: {} for name in sizes}
    for kind, value in state.items():
        if getattr(value, "ndim", 0):  # no counter
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
            found.add(full_name(name, "linear_fc1"))
    return found


def check_distributed(
    states: Mapping[str, Mapping[str, Any]], items: Mapping[str, ParameterSlice]
) -> None:
    """Raise where a state is a plain tensor with only a part of its parameter.

    DCP takes a plain tensor for a copy that every rank has: it keeps one rank's part, and loses
    the others without a word.
    """
    faults = [
        (name, kind, value)
        for name, state in states.items()
        for kind, value in state.items()
        if name in items
        and getattr(value, "ndim", 0) > 0
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
