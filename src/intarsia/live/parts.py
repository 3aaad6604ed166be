"""The boxes of tensors that this process holds, which is what a sharded checkpoint stores.

A shard is a set of indices along each axis.  Mostly that is one interval, and the shard one box;
a strided shard whose blocks no later axis closes is several, and each becomes a box of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from intarsia.dtypes import DType
from intarsia.layout import Layout
from intarsia.live.holding import dtype_of, is_present, memory_of
from intarsia.live.megatron_item import is_dtensor
from intarsia.mesh import Box, Shape
from intarsia.placement import (
    Placement,
    Replicate,
    Shard,
    Strided,
    cutting_order,
    from_torch,
    local,
)

if TYPE_CHECKING:
    import torch

Run = tuple[int, int, int]
"""First index in memory, first index in the tensor, length."""


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
        for runs in product(*_runs(tensor, shape)):
            box = Box(tuple(to for _, to, _ in runs), tuple(n for _, _, n in runs))
            index = tuple(slice(at, at + n) for at, _, n in runs)
            yield Part(name, dtype, shape, box, proof, held[index])


def _runs(tensor: Any, shape: Shape) -> list[list[Run]]:
    """Along each axis, the stretches of indices that this process holds."""
    mesh = tensor.device_mesh
    sizes = tuple(mesh.size(axis) for axis in range(mesh.ndim))
    placements = from_torch(tensor.placements)
    place = mesh.get_coordinate()
    held = tuple(memory_of(tensor).shape)
    literal = cutting_order(sizes, placements) is None
    found = [_axis(n, d, sizes, placements, place, literal) for d, n in enumerate(shape)]
    if tuple(sum(n for _, _, n in runs) for runs in found) != held and not literal:
        found = [_axis(n, d, sizes, placements, place, True) for d, n in enumerate(shape)]
    return found


def _axis(
    n: int,
    dim: int,
    sizes: tuple[int, ...],
    placements: tuple[Placement, ...],
    place: tuple[int, ...],
    literal: bool,
) -> list[Run]:
    own = tuple(_along(p, dim) for p in placements)
    x = local(Layout.of("", (n,)), sizes, own, place, literal=literal)
    runs = sorted((p.at, p.to, p.size) for p in x.pieces)
    joined: list[Run] = []
    for at, to, size in runs:
        if joined and joined[-1][1] + joined[-1][2] == to and joined[-1][0] + joined[-1][2] == at:
            joined[-1] = (joined[-1][0], joined[-1][1], joined[-1][2] + size)
        else:
            joined.append((at, to, size))
    return joined or ([(0, 0, 0)] if n == 0 else [])


def _along(p: Placement, dim: int) -> Placement:
    if isinstance(p, Replicate) or p.dim != dim:
        return Replicate()
    return Strided(0, p.split) if isinstance(p, Strided) else Shard(0)


def _proof(tensor: Any) -> tuple[int, ...]:
    """The ranks of the mesh that a DTensor lies on."""
    if not is_dtensor(tensor):
        return ()
    return tuple(tensor.device_mesh.mesh.flatten().tolist())
