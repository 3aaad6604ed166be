"""DTensor placements and layouts: two notations for the same cut.

torch reads a strided shard in two ways.  `full_tensor()` and FSDP2 read an *order* of plain
cuts out of it (tensor parallel first, then FSDP), which is where the data are; DCP and
`distribute_tensor` chunk literally, left to right.  The two agree where every cut but the
last is even.  Here the data's reading is the answer, and the literal one can be asked for.

    >>> from intarsia.layout import Layout
    >>> w = Layout.of("w", (9,))
    >>> local(w, (4, 2), (Strided(0, 2), Shard(0)), (3, 1)).pieces
    (Piece(tensor='w', at=0, to=8, loops=()),)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from intarsia.errors import LayoutError
from intarsia.layout import Layout, concat, shard
from intarsia.mesh import Mesh, Rule


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
    """torch's placement objects as values, told apart by what they say of themselves."""
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
    order = None if literal else cutting_order(mesh, placements)
    if order is None:
        for n, p, i in zip(mesh, placements, place, strict=True):
            x = _cut_literally(x, n, p, i)
        return x
    for axis in order:
        placed = placements[axis]
        assert not isinstance(placed, Replicate)
        x = shard(x, mesh[axis], place[axis], placed.dim)
    return x


def _cut_literally(x: Layout, n: int, p: Placement, i: int) -> Layout:
    if isinstance(p, Replicate):
        return x
    if isinstance(p, Shard):
        return shard(x, n, i, p.dim)
    blocks = [shard(x, p.split, block, p.dim) for block in range(p.split)]
    return concat([shard(block, n, i, p.dim) for block in blocks], p.dim)


def cutting_order(mesh: Sequence[int], placements: Sequence[Placement]) -> list[int] | None:
    """The mesh axes in the order in which they cut, or None where no order explains the splits.

    A strided shard that splits by `k` is cut after axes whose sizes multiply to `k`.

    >>> cutting_order((4, 2), (Strided(0, 2), Shard(0)))
    [1, 0]
    """
    orders: dict[int, list[int]] = {}
    for axis in range(len(mesh) - 1, -1, -1):
        p = placements[axis]
        if isinstance(p, Replicate):
            continue
        order = orders.setdefault(p.dim, [])
        split = p.split if isinstance(p, Strided) else 1
        before = next(
            (k for k in range(len(order) + 1) if prod(mesh[a] for a in order[:k]) == split), None
        )
        if before is None:
            return None
        order.insert(before, axis)
    return [axis for dim in sorted(orders) for axis in orders[dim]]


def placements_of(rule: Rule, mesh: Mesh, ndim: int) -> dict[str, Placement]:
    """The placements, by mesh axis, that cut a tensor as a rule does.

    >>> placements_of(Rule(tp=0), Mesh(tp=2, fsdp=4), 2)
    {'replicate': Replicate(), 'fsdp': Strided(dim=0, split=2), 'tp': Shard(dim=0)}
    """
    if rule.is_expert:
        sizes = {"fsdp": mesh.expert_fsdp, "ep": mesh.ep, "tp": mesh.etp}
        axes = {"ep": rule.ep, "tp": rule.tp}
    else:
        sizes = {"fsdp": mesh.fsdp, "tp": mesh.tp}
        axes = {"tp": rule.tp}
    found: dict[str, Placement] = {"replicate": Replicate()}
    first = prod(sizes[name] for name, axis in axes.items() if axis == 0)
    if not ndim or sizes["fsdp"] == 1:
        found["fsdp"] = Replicate()
    else:
        found["fsdp"] = Strided(0, first) if first > 1 else Shard(0)
    for name, axis in axes.items():
        found[name] = Replicate() if axis is None or sizes[name] == 1 else Shard(axis)
    return found
