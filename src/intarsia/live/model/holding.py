"""What a process holds of a tensor: memory, and the elements that belong into it.

A DTensor's shape is that of all ranks together, and its placements cut it; a plain tensor is
what it is.  A strided shard has two readings (see `placement`).  The data are where
`full_tensor()` finds them, so that reading is taken wherever every rank's memory has room for
it, and the literal one only where the memory says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch

from intarsia.dtypes import BY_TORCH, DType
from intarsia.errors import LayoutError
from intarsia.layout import Layout
from intarsia.mesh import Box, Shape
from intarsia.placement import local, placements_of
from intarsia.planning.manifest import Target
from intarsia.value import PLAIN, Value


@dataclass(frozen=True, slots=True)
class Holding:
    """A tensor in this process's memory; `layout` says which elements its places are for."""

    name: str
    layout: Layout
    tensor: torch.Tensor
    value: Value = PLAIN

    @property
    def dtype(self) -> DType:
        return dtype_of(self.tensor, self.name)

    @property
    def target(self) -> Target:
        whole = Box.whole(self.layout.shape)
        return Target(self.name, self.dtype, self.layout, (whole,), value=self.value)

    @property
    def nbytes(self) -> int:
        return self.layout.size * self.dtype.itemsize


def dtype_of(tensor: Any, name: str) -> DType:
    """The element type of a torch tensor."""
    found = _dtype_of(tensor.dtype)
    if found is None:
        raise LayoutError(
            f"`{name}` has element type {tensor.dtype}, which no format stores",
            hint="keep it as numbers that one does, for example " + _plainly(tensor),
        )
    return found


def _plainly(tensor: Any) -> str:
    if getattr(tensor, "is_quantized", False):
        return "x.dequantize(), or x.int_repr() with its scale and zero point beside"
    return "torch.view_as_real(x)" if tensor.dtype.is_complex else "x.view(torch.uint8)"


@cache
def _dtype_of(dtype: torch.dtype) -> DType | None:
    return BY_TORCH.get(str(dtype).removeprefix("torch."))


def is_dtensor(x: Any) -> bool:
    """Whether a tensor is distributed, known by what it offers."""
    kind: Any = type(x)
    by_class = _class_is_dtensor(kind)
    return hasattr(x, "to_local") and hasattr(x, "placements") if by_class is None else by_class


@lru_cache(maxsize=1 << 10)
def _class_is_dtensor(kind: Any) -> bool | None:
    """Whether the tensors of a class are distributed; None where it is no class of torch's tensors."""
    if hasattr(kind, "to_local") and hasattr(kind, "placements"):
        return True
    return False if hasattr(kind, "untyped_storage") else None


def memory_of(tensor: Any) -> torch.Tensor:
    """The memory of a tensor in this process: what a DTensor keeps here, or all of it."""
    if not is_dtensor(tensor):
        found: torch.Tensor = tensor.detach()
        return found
    return memories_of({"": tensor})[""]


def memories_of(tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The memory of each tensor in this process."""
    # Without gradients a DTensor hands out its memory; with them, it goes through autograd.
    with torch.no_grad():
        found = {n: x.to_local() if is_dtensor(x) else x for n, x in tensors.items()}
        return {n: x.detach() if x.requires_grad else x for n, x in found.items()}


def memory_id(tensor: Any) -> tuple[Any, ...]:
    """What two tensors have in common that are the same elements of one memory, tied ones say."""
    x = memory_of(tensor)
    at = (
        x.untyped_storage()._cdata,
        x.storage_offset(),
    )  # an address would be none for all empty parts
    return *at, tuple(tensor.shape), tuple(x.shape), x.stride(), x.dtype


def is_present(tensor: Any) -> bool:
    """Whether this process is on the tensor's mesh; where it is not, it holds nothing of it."""
    return not is_dtensor(tensor) or tensor.device_mesh.get_coordinate() is not None


def held_layout(x: Layout, tensor: Any, *, literal: bool = False) -> Layout:
    """What this process holds of a tensor with layout `x`, by the tensor's mesh and placements."""
    if not is_dtensor(tensor):
        return x
    mesh = tensor.device_mesh
    placements = placements_of(tensor)
    sizes = tuple(mesh.size(axis) for axis in range(mesh.ndim))
    return local(x, sizes, placements, mesh.get_coordinate(), literal=literal)


def fits_memory(x: Layout, tensor: Any, *, literal: bool = False) -> bool:
    """Whether a reading of the placements has the shape of the memory that is there."""
    return held_layout(x, tensor, literal=literal).shape == tuple(memory_of(tensor).shape)


def placed(tensor: Any) -> str:
    """Where a tensor lies, in words for an error.

    >>> import torch
    >>> placed(torch.zeros(2, 3))
    'a plain tensor of [2, 3]'
    """
    if not is_dtensor(tensor):
        return f"a plain tensor of {list(tensor.shape)}"
    return distributed(tensor)


def distributed(tensor: Any) -> str:
    """A DTensor, or what was seen of one, in words for an error."""
    mesh = tensor.device_mesh
    names = mesh.mesh_dim_names or [f"axis {k}" for k in range(mesh.ndim)]
    axes = ", ".join(f"{n}={mesh.size(k)}" for k, n in enumerate(names))
    cuts = ", ".join(map(str, tensor.placements))
    return f"a DTensor of {list(tensor.shape)} on ({axes}) as ({cuts})"


def check_shape(name: str, expected: Shape, tensor: Any, where: str) -> None:
    """Raise where a tensor is not what the checkpoint's model has under its name."""
    if tuple(tensor.shape) == tuple(expected):
        return
    hint = "the model and the checkpoint have different configurations"
    if is_dtensor(tensor):
        hint += "; a DTensor made by `from_local` needs `shape=` where its parts are uneven"
    elif tensor.dim() == len(expected) and any(
        a < b for a, b in zip(tensor.shape, expected, strict=True)
    ):
        hint = "a plain tensor counts as the whole tensor: make it a DTensor, or give `mesh=` and `rank=`"
    raise LayoutError(f"`{name}` is {placed(tensor)}, {where} has {list(expected)}", hint=hint)
