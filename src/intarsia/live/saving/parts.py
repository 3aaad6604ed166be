"""The boxes of tensors that this process holds, which is what a sharded checkpoint stores.

A shard is a set of indices along each axis.  Mostly that is one interval, and the shard one box;
a strided shard whose blocks no later axis closes is several, and each becomes a box of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch

from intarsia.dtypes import DType
from intarsia.errors import LayoutError
from intarsia.live.model.holding import distributed, dtype_of, is_dtensor
from intarsia.mesh import Box, Shape
from intarsia.placement import boxes, placements_of


@dataclass(frozen=True, slots=True)
class HeldBox:
    """One box of a tensor that a rank holds, as it is reported to the other ranks before anything is written.

    `proof` are the ranks whose DTensor says that they hold the same; a plain tensor says nothing.
    """

    name: str
    dtype: DType
    shape: Shape
    box: Box
    proof: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeldPart(HeldBox):
    """A box, and the memory here that holds it."""

    memory: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.box.size * self.dtype.itemsize


class SeenTensor(NamedTuple):
    """What a tensor was at one moment: a training may change its type and shape in place."""

    dtype: DType
    shape: Shape
    device_mesh: Any = None
    placements: Any = None

    @staticmethod
    def of(tensor: Any, name: str) -> SeenTensor:
        kind, shape = dtype_of(tensor, name), tuple(tensor.shape)
        if not is_dtensor(tensor):
            return SeenTensor(kind, shape)
        return SeenTensor(kind, shape, tensor.device_mesh, tensor.placements)


def parts_of(
    seen: Mapping[str, SeenTensor], memory: Mapping[str, torch.Tensor]
) -> Iterator[HeldPart]:
    """The boxes that this process holds of each tensor; of an empty tensor, the empty box.

    `memory` is what it holds of each, or a copy of that.
    """
    places = _Places()
    for name, tensor in seen.items():
        dtype, shape, held = tensor.dtype, tensor.shape, memory[name]
        if tensor.device_mesh is None:
            yield HeldPart(name, dtype, shape, Box.whole(shape), (), held)
            continue
        if tensor.device_mesh.get_coordinate() is None:
            continue  # this process is not on the tensor's mesh, and holds nothing of it
        proof = places.ranks(tensor.device_mesh)
        if not prod(shape):
            yield HeldPart(name, dtype, shape, Box.whole(shape), proof, held)
        found = places.boxes(tensor)
        _check_count(name, tensor, sum(to.size for _, to in found), held.numel())
        for at, to in found:
            yield HeldPart(name, dtype, shape, to, proof, held[at.slices])


class _Places:
    """What placements say, asked once for all tensors that are alike; meshes go by identity."""

    def __init__(self) -> None:
        self._ranks: dict[int, tuple[int, ...]] = {}
        self._boxes: dict[Any, list[tuple[Box, Box]]] = {}

    def ranks(self, mesh: Any) -> tuple[int, ...]:
        """The ranks of a mesh."""
        if id(mesh) not in self._ranks:
            self._ranks[id(mesh)] = tuple(mesh.mesh.flatten().tolist())
        return self._ranks[id(mesh)]

    def boxes(self, tensor: SeenTensor) -> list[tuple[Box, Box]]:
        """Where each box lies in this process's memory, and in the whole tensor."""
        mesh = tensor.device_mesh
        key = tensor.shape, id(mesh), tensor.placements
        if key not in self._boxes:
            sizes = tuple(mesh.size(axis) for axis in range(mesh.ndim))
            placements = placements_of(tensor)
            self._boxes[key] = boxes(tensor.shape, sizes, placements, mesh.get_coordinate())
        return self._boxes[key]


def _check_count(name: str, tensor: SeenTensor, count: int, held: int) -> None:
    if count != held:
        raise LayoutError(
            f"`{name}` is {distributed(tensor)}, which gives this rank {count:,} elements; it holds {held:,}",
            hint="give `shape=` and `stride=` to `DTensor.from_local`, the same on all ranks",
        )
