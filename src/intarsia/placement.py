"""DTensor placements and layouts: two notations for the same cut.

torch reads a strided shard in two ways.  `full_tensor()` and FSDP2 read an *order* of plain
cuts out of it (tensor parallel first, then FSDP), which is where the data are; DCP and
`distribute_tensor` chunk literally, left to right.  The two agree where every cut but the
last is even.  Here the data's reading is the answer, and the literal one can be asked for.
A split that no order of cuts explains is an interleave: a gated projection, whose tensor-parallel
rank holds a part of the gate and a part of up, before FSDP cuts what that rank holds.

    >>> from intarsia.layout import Layout
    >>> w = Layout.of("w", (9,))
    >>> local(w, (4, 2), (Strided(0, 2), Shard(0)), (3, 1)).pieces
    (Piece(tensor='w', at=0, to=8, loops=()),)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import product
from math import prod
from typing import Any

from intarsia.errors import LayoutError
from intarsia.layout import Layout, concat, shard
from intarsia.mesh import Box


@dataclass(frozen=True, slots=True)
class Shard:
    """Cut `dim` into equal parts, as `torch.chunk` does."""

    dim: int


@dataclass(frozen=True, slots=True)
class Strided:
    """Cut `dim` into `split` blocks, then each block into parts; a rank holds one part of each."""

    dim: int
    split: int


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank of this mesh axis holds the same."""


Placement = Shard | Strided | Replicate


def from_torch(placements: Sequence[Any]) -> tuple[Placement, ...]:
    """torch's placement objects as values, distinguished by their own attributes."""
    found: list[Placement] = []
    for p in placements:
        if p.is_partial():
            raise LayoutError(
                f"a partial placement ({p}) holds summands, not elements",
                hint="reduce it first: redistribute to Shard or Replicate",
            )
        split = getattr(p, "split_factor", None)
        if p.is_replicate():
            found.append(Replicate())
        elif split is not None:
            found.append(Strided(p.dim, split))
        else:
            found.append(Shard(p.dim))
    return tuple(found)


def placements_of(tensor: Any) -> tuple[Placement, ...]:
    """What the placements of a DTensor say of its parts; raise where they cannot be believed.

    FSDP2 of torch 2.11 takes an axis that tensor parallelism interleaves for one that nobody cuts.
    """
    found, mesh = from_torch(tensor.placements), tensor.device_mesh
    cuts = [
        (k, p) for k, p in enumerate(found) if not isinstance(p, Replicate) and mesh.size(k) > 1
    ]
    forgotten = any(
        isinstance(later, Strided) and k < j and p.dim == later.dim
        for k, p in cuts
        for j, later in cuts
    )
    if forgotten and (version := _torch_version()) < (2, 12):
        raise LayoutError(
            f"placements {tensor.placements} do not say where the elements are: FSDP2 of torch"
            f" {'.'.join(map(str, version))} forgets that tensor parallelism had interleaved the axis that it cuts",
            hint="use torch 2.12 or later, or FSDP2 without tensor parallelism for these modules",
        )
    return found


def _torch_version() -> tuple[int, ...]:
    return tuple(map(int, metadata.version("torch").split("+")[0].split(".")[:2]))


def local(
    x: Layout,
    mesh: Sequence[int],
    placements: Sequence[Placement],
    place: Sequence[int],
    *,
    literal: bool = False,
) -> Layout:
    """What the rank at `place` holds of `x`; `literal` takes DCP's reading of strided shards."""
    if not len(mesh) == len(placements) == len(place):
        raise LayoutError(
            f"{len(mesh)} mesh axes, {len(placements)} placements, {len(place)} indices"
        )
    if literal:
        cuts = list(zip(range(len(mesh)), placements, strict=True))
    else:
        cuts = cutting_order(mesh, placements)
    for axis, p in cuts:
        x = _cut(x, mesh[axis], p, place[axis])
    return x


def _cut(x: Layout, n: int, p: Placement, i: int) -> Layout:
    if isinstance(p, Replicate):
        return x
    if isinstance(p, Shard):
        return shard(x, n, i, p.dim)
    blocks = [shard(x, p.split, block, p.dim) for block in range(p.split)]
    return concat([shard(block, n, i, p.dim) for block in blocks], p.dim)


def cutting_order(
    mesh: Sequence[int], placements: Sequence[Placement]
) -> list[tuple[int, Placement]]:
    """The mesh axes in the order in which they cut, each with the cut that it makes.

    A strided shard that splits by `k` is a plain cut after axes whose sizes multiply to `k`;
    where there are none, it interleaves.

    >>> cutting_order((4, 2), (Strided(0, 2), Shard(0)))
    [(1, Shard(dim=0)), (0, Shard(dim=0))]
    >>> cutting_order((4, 2), (Strided(0, 2), Strided(0, 3)))
    [(1, Strided(dim=0, split=3)), (0, Shard(dim=0))]
    """
    orders: dict[int, list[tuple[int, Placement]]] = {}
    for axis in range(len(mesh) - 1, -1, -1):
        p = placements[axis]
        if isinstance(p, Replicate):
            continue
        order = orders.setdefault(p.dim, [])
        split = p.split if isinstance(p, Strided) else 1
        before = next(
            (k for k in range(len(order) + 1) if prod(mesh[a] for a, _ in order[:k]) == split), None
        )
        if before is None:
            order.insert(0, (axis, p))
        else:
            order.insert(before, (axis, Shard(p.dim)))
    return [cut for dim in sorted(orders) for cut in orders[dim]]


def boxes(
    shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Placement], place: Sequence[int]
) -> list[tuple[Box, Box]]:
    """The boxes that the rank at `place` holds: where each lies in its shard, and in the whole.

    >>> boxes((8,), (2,), (Strided(0, 2),), (1,))
    [(Box((0,), (2,)), Box((2,), (2,))), (Box((2,), (2,)), Box((6,), (2,)))]
    """
    lines = []
    for axis, size in enumerate(shape):
        own = [_on_a_line(p, axis) for p in placements]
        lines.append(list(_runs(local(Layout.of("", (size,)), mesh, own, place))))
    found = []
    for runs in product(*lines):
        sizes = tuple(n for _, _, n in runs)
        at, to = tuple(a for a, _, _ in runs), tuple(t for _, t, _ in runs)
        found.append((Box(at, sizes), Box(to, sizes)))
    return found


def _on_a_line(p: Placement, axis: int) -> Placement:
    if isinstance(p, Replicate) or p.dim != axis:
        return Replicate()
    return Strided(0, p.split) if isinstance(p, Strided) else Shard(0)


def _runs(line: Layout) -> Iterator[tuple[int, int, int]]:
    """The runs of a layout of one axis: where each begins in it, in the whole, and its length."""
    for piece in line.pieces:
        if piece.run:
            yield piece.at, piece.to, piece.run
            continue
        for steps in product(*(range(loop.n) for loop in piece.loops)):
            at = sum(i * loop.at for i, loop in zip(steps, piece.loops, strict=True))
            to = sum(i * loop.to for i, loop in zip(steps, piece.loops, strict=True))
            yield piece.at + at, piece.to + to, 1
