"""The boxes of tensors that this process holds, which is what a sharded checkpoint stores.

A shard is a set of indices along each axis.  Mostly that is one interval, and the shard one box;
a strided shard whose blocks no later axis closes is several, and each becomes a box of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from intarsia.dtypes import DType
from intarsia.errors import LayoutError
from intarsia.live.holding import dtype_of, is_present, memory_of, placed
from intarsia.live.megatron_item import is_dtensor
from intarsia.mesh import Box, Shape
from intarsia.placement import boxes, from_torch

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Part:
    """One box of a tensor, and the memory here that holds it.

    `proof` are the ranks whose DTensor says that they hold the same; a plain tensor says nothing.
    """

    name: str
    dtype: DType
    shape: Shape
    box: Box
    proof: tuple[int, ...]
    memory: torch.Tensor


def parts_of(tensors: Mapping[str, Any]) -> Iterator[Part]:
    """The boxes that this process holds of each tensor; of an empty tensor, the empty box."""
    for name, tensor in tensors.items():
        if not is_present(tensor):
            continue
        dtype, shape = dtype_of(tensor, name), tuple(tensor.shape)
        held, proof = memory_of(tensor), _proof(tensor)
        if not is_dtensor(tensor):
            yield Part(name, dtype, shape, Box.whole(shape), proof, held)
            continue
        if not tensor.numel():
            yield Part(name, dtype, shape, Box.whole(shape), proof, held)
        for at, to in _boxes(name, tensor):
            index = tuple(slice(o, o + n) for o, n in zip(at.offsets, at.shape, strict=True))
            yield Part(name, dtype, shape, to, proof, held[index])


def _boxes(name: str, tensor: Any) -> list[tuple[Box, Box]]:
    """Where each box lies in this process's memory, and in the whole tensor."""
    mesh = tensor.device_mesh
    sizes = tuple(mesh.size(axis) for axis in range(mesh.ndim))
    found = boxes(tensor.shape, sizes, from_torch(tensor.placements), mesh.get_coordinate())
    count, held = sum(to.size for _, to in found), memory_of(tensor).numel()
    if count != held:
        raise LayoutError(
            f"`{name}` is {placed(tensor)}, which gives this rank {count:,} elements; it holds {held:,}",
            hint="give `shape=` and `stride=` to `DTensor.from_local`, the same on all ranks",
        )
    return found


def _proof(tensor: Any) -> tuple[int, ...]:
    """The ranks of the mesh that a DTensor lies on."""
    if not is_dtensor(tensor):
        return ()
    return tuple(tensor.device_mesh.mesh.flatten().tolist())
