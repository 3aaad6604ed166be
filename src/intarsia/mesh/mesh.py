"""A mesh of ranks, a place in it, and the rules by which a mesh cuts tensors.

Ranks run tensor-parallel fastest, then context, FSDP shards, HSDP copies, pipeline stages.
Experts lie on the same ranks in an order of their own: expert-tensor fastest, then expert
parallel, then whatever ranks are left, which shard the experts further under FSDP and
otherwise hold copies.

    >>> mesh = Mesh.parse("tp=2,fsdp=3")
    >>> mesh.size
    6
    >>> [mesh.box((5, 4), Rule(tp=1), rank) for rank in (0, 5)]
    [Box((0, 0), (2, 2)), Box((4, 2), (1, 2))]
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, lru_cache
from math import gcd, lcm, prod
from types import NoneType

from intarsia.errors import UsageError
from intarsia.frozen import frozen, frozen_open
from intarsia.mesh.box import Box, Grid, Shape

MAX_RANKS = 1 << 20
"""The most ranks of a mesh: every one of them is looked at."""


@frozen
class Rule:
    """How a mesh cuts one stored tensor.

    `tp` is the axis that tensor parallelism cuts (expert tensor parallelism for experts).
    A tensor that stacks experts names their axis in `ep`; one that is a single expert's says
    which, and of how many, in `expert`.  `layer` says which layer of how many it belongs to:
    the pipeline stage follows from it.  With a `grid` the tensor is cut as another is, whose axes
    `tp` and `ep` are.
    """

    tp: int | None = None
    ep: int | None = None
    expert: tuple[int, int] | None = None
    layer: tuple[int, int] | None = None
    grid: Grid | None = None

    @property
    def is_expert(self) -> bool:
        return self.ep is not None or self.expert is not None


def share(n: int, parts: int, index: int) -> tuple[int, int]:
    """Part `index` of `n` elements cut as `torch.chunk` cuts, as `(first, count)`."""
    step = -(-n // parts)
    lo = min(index * step, n)
    return lo, min(lo + step, n) - lo


@frozen_open
class Mesh:
    """How many ranks each kind of parallelism has."""

    tp: int = 1
    etp: int = 1
    ep: int = 1
    pp: int = 1
    cp: int = 1
    fsdp: int = 1
    replicate: int = 1

    @staticmethod
    def parse(text: str | Mapping[str, int] | Mesh | None) -> Mesh:
        """A mesh from `"tp=2,ep=4"`, from a mapping, or the mesh itself."""
        if isinstance(text, Mesh):
            return text
        known = [f.name for f in fields(Mesh)]
        sizes: dict[str, int] = {}
        pairs: list[tuple[str, object]]
        if isinstance(text, Mapping):
            pairs = list(text.items())
        elif not isinstance(text, (str, NoneType)):
            raise UsageError(
                f"a mesh is text or a mapping, found {text!r}", hint='for example {"tp": 2}'
            )
        else:
            words = [w for w in (text or "").replace(" ", "").split(",") if w]
            pairs = [(w.partition("=")[0], w.partition("=")[2]) for w in words]
        for name, value in pairs:
            if name not in known:
                raise UsageError(
                    f"unknown mesh axis {name!r} in {text!r}", hint=f"axes are {', '.join(known)}"
                )
            if name in sizes:
                raise UsageError(f"mesh axis {name!r} is given twice in {text!r}")
            digits = str(value)
            if digits.isdecimal() and len(digits.lstrip("0")) > len(str(MAX_RANKS)):
                raise UsageError(f"mesh axis {name} has at most {MAX_RANKS:,} ranks")
            if not digits.isdecimal() or int(digits) < 1:
                raise UsageError(
                    f"mesh axis {name} is {value!r}", hint="a size is a whole number, at least 1"
                )
            sizes[name] = int(digits)
        mesh = Mesh(**sizes)
        if mesh.size > MAX_RANKS:
            raise UsageError(f"the mesh {mesh} has {mesh.size:,} ranks, at most {MAX_RANKS:,}")
        return mesh

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # asked for with every tensor that is cut
        return hash(tuple([getattr(self, f.name) for f in fields(self)]))

    @property
    def dense(self) -> int:
        """Ranks of one pipeline stage that the dense axes need."""
        return self.tp * self.cp * self.fsdp * self.replicate

    @property
    def lanes(self) -> int:
        """Ranks of one pipeline stage."""
        return lcm(self.dense, self.etp * self.ep)

    @property
    def size(self) -> int:
        return self.lanes * self.pp

    @cached_property
    def _known_boxes(self) -> dict[tuple[Shape, int | None, int | None, bool], tuple[Box, ...]]:
        """What `boxes` gave, found without the hash of all axes."""
        return {}

    @cached_property
    def _known_holders(self) -> dict[Hashable, dict[Box, list[int]]]:
        """What `holders` gave."""
        return {}

    @cached_property
    def expert_fsdp(self) -> int:
        """How many FSDP shards an expert has once EP has placed it."""
        left = self.lanes // (self.etp * self.ep)
        return left // gcd(left, self.replicate) if self.fsdp > 1 else 1

    def place(self, rank: int) -> Place:
        """Where `rank` stands on every axis."""
        return _place(self, rank)

    def stage(self, rule: Rule) -> int | None:
        """The pipeline stage that holds a tensor; None where every stage does."""
        if rule.layer is None:
            return None
        layer, layers = rule.layer
        return min(layer * self.pp // layers, self.pp - 1)

    def box(self, shape: Shape, rule: Rule, rank: int) -> Box | None:
        """What `rank` holds of a tensor, or None where it holds nothing of it."""
        at = self.place(rank)
        if self.pp > 1 and rule.layer is not None and self.stage(rule) != at.pp:
            return None
        if rule.expert is not None and at.ep != _owner_of_expert(rule.expert, self.ep):
            return None
        if rule.is_expert:
            tp, ep, fsdp = (self.etp, at.etp), (self.ep, at.ep), (self.expert_fsdp, at.expert_fsdp)
        else:
            tp, ep, fsdp = (self.tp, at.tp), (1, 0), (self.fsdp, at.fsdp)
        if rule.grid is None:
            return _cut(shape, rule.tp, rule.ep, tp, ep, fsdp)
        if not _is_in_step(self, rule.grid.shape, rule.grid.step, rule.tp, rule.ep, rule.is_expert):
            return Box.whole(shape)
        cut = _cut(rule.grid.shape, rule.tp, rule.ep, tp, ep, fsdp)
        return rule.grid.follow(cut, shape)

    def boxes(self, shape: Shape, rule: Rule) -> tuple[Box, ...]:
        """The boxes into which the mesh cuts a tensor, each once, in order of their offsets."""
        if rule.grid is None:
            cut = shape, rule.tp, rule.ep, rule.is_expert
            known = self._known_boxes
            return known.get(cut) or known.setdefault(cut, _boxes(self, *cut))
        return _boxes_in_step(self, shape, rule.grid, rule.tp, rule.ep, rule.is_expert)

    def holders(self, shape: Shape, rule: Rule) -> Mapping[Box, Sequence[int]]:
        """The ranks that hold each box: its replicas; one object for tensors that the same ranks hold alike."""
        stage = self.stage(rule) if self.pp > 1 else None
        owner = None if rule.expert is None else _owner_of_expert(rule.expert, self.ep)
        held_by = shape, rule.tp, rule.ep, owner, stage, rule.grid
        if (held := self._known_holders.get(held_by)) is None:
            held, empty = {}, not prod(shape)
            for rank in range(self.size):
                box = self.box(shape, rule, rank)
                if box is not None and (box.size or empty):
                    held.setdefault(Box.whole(shape) if empty else box, []).append(rank)
            self._known_holders[held_by] = held
        return held

    def __str__(self) -> str:
        sizes = ((f.name, getattr(self, f.name)) for f in fields(self))
        return ",".join(f"{name}={n}" for name, n in sizes if n > 1) or "1 rank"


@frozen
class Place:
    """One rank's index on every axis."""

    mesh: Mesh
    rank: int
    tp: int = 0
    etp: int = 0
    ep: int = 0
    pp: int = 0
    cp: int = 0
    fsdp: int = 0
    replicate: int = 0
    expert_fsdp: int = 0

    def __str__(self) -> str:
        axes = [f for f in fields(Mesh) if getattr(self.mesh, f.name) > 1]
        return " ".join(f"{f.name}={getattr(self, f.name)}" for f in axes) or "rank=0"


def _owner_of_expert(expert: tuple[int, int], ep: int) -> int:
    index, count = expert
    return index // -(-count // ep)


@lru_cache(maxsize=1 << 14)
def _cut(
    shape: Shape,
    tp_axis: int | None,
    ep_axis: int | None,
    tp: tuple[int, int],
    ep: tuple[int, int],
    fsdp: tuple[int, int],
) -> Box:
    """Expert parallel, then tensor parallel, then FSDP on the first axis of what is left."""
    offsets, sizes = [0] * len(shape), list(shape)
    cuts = ((ep_axis, ep), (tp_axis, tp), (0 if shape else None, fsdp))
    for axis, (parts, index) in cuts:
        if axis is not None and parts > 1:
            lo, count = share(sizes[axis], parts, index)
            offsets[axis] += lo
            sizes[axis] = count
    return Box(tuple(offsets), tuple(sizes))


@lru_cache(maxsize=4096)
def _place(mesh: Mesh, rank: int) -> Place:
    if not 0 <= rank < mesh.size:
        raise UsageError(f"rank {rank} is outside a mesh of {mesh.size} ranks ({mesh})")
    pp, lane = divmod(rank, mesh.lanes)
    rest, tp = divmod(lane, mesh.tp)
    rest, cp = divmod(rest, mesh.cp)
    replicate, fsdp = divmod(rest, mesh.fsdp)
    left, etp = divmod(lane, mesh.etp)
    left, ep = divmod(left, mesh.ep)
    return Place(mesh, rank, tp, etp, ep, pp, cp, fsdp, replicate, left % mesh.expert_fsdp)


@lru_cache(maxsize=4096)
def _boxes(
    mesh: Mesh, shape: Shape, tp: int | None, ep: int | None, expert: bool
) -> tuple[Box, ...]:
    tps, fsdps = (mesh.etp, mesh.expert_fsdp) if expert else (mesh.tp, mesh.fsdp)
    found = {
        _cut(shape, tp, ep, (tps, t), (mesh.ep, e), (fsdps, f))
        for e in range(mesh.ep if ep is not None else 1)
        for t in range(tps if tp is not None else 1)
        for f in range(fsdps)
    }
    found = {box for box in found if box.size} if prod(shape) else {Box.whole(shape)}
    return tuple(sorted(found, key=lambda box: box.offsets))


@lru_cache(maxsize=4096)
def _is_in_step(
    mesh: Mesh, shape: Shape, step: Shape, tp: int | None, ep: int | None, expert: bool
) -> bool:
    """Whether every cut of a mesh falls between the steps of a grid."""
    grid = Grid(shape, step, ())
    return all(map(grid.allows, _boxes(mesh, shape, tp, ep, expert)))


@lru_cache(maxsize=4096)
def _boxes_in_step(
    mesh: Mesh, shape: Shape, grid: Grid, tp: int | None, ep: int | None, expert: bool
) -> tuple[Box, ...]:
    if not prod(shape) or not _is_in_step(mesh, grid.shape, grid.step, tp, ep, expert):
        return (Box.whole(shape),)
    cuts = _boxes(mesh, grid.shape, tp, ep, expert)
    return tuple(sorted({grid.follow(cut, shape) for cut in cuts}, key=lambda box: box.offsets))
