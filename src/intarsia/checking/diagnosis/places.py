"""Where the differences of a tensor lie: the block of a rank, trailing rows, files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypothesis import ENOUGH, Bits
from intarsia.checkpoint import Checkpoint
from intarsia.layout import Layout, unravel
from intarsia.mesh import Box, share
from intarsia.planning.window import windows

RANKS = 64
DENSE = 0.8
"""The share of a block's elements that must differ before the whole block is held to be wrong."""

TRIM = 0.05
"""How far a block's edge may be missed: an element can be right by accident."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Block `rank` of `parts` on one axis."""

    axis: int
    parts: int
    rank: int

    def __str__(self) -> str:
        return f"block {self.rank} of {self.parts} on axis {self.axis}"


@dataclass(frozen=True, slots=True)
class Flat:
    """The elements `[first, last]` of a flattened tensor: block `rank` of `parts`, if it is one."""

    first: int
    last: int
    parts: int = 0
    rank: int = 0

    def __str__(self) -> str:
        if self.parts:
            return f"flat block {self.rank} of {self.parts}"
        return f"the flat range of elements {self.first:,} to {self.last:,}"


@dataclass(frozen=True)
class Place:
    """The smallest box that holds every difference, and how full of them it is.

    `first` and `last` are the flat indices of the first and the last one.
    """

    box: Box
    differing: int
    shape: tuple[int, ...]
    first: int
    last: int

    @property
    def dense(self) -> bool:
        return self.differing >= DENSE * self.box.size

    @property
    def everywhere(self) -> bool:
        return self.dense and self.box.size >= (1 - TRIM) * prod(self.shape)

    @property
    def cuts(self) -> tuple[Cut, ...] | None:
        """The block of a mesh that the box is, one cut an axis; None where it is none."""
        found = []
        for axis, (lo, n, size) in enumerate(
            zip(self.box.offsets, self.box.shape, self.shape, strict=True)
        ):
            if n < size:
                cut = block_around(axis, lo, n, size)
                if cut is None:
                    return None
                found.append(cut)
        return tuple(found)

    @property
    def flat(self) -> Flat | None:
        """The flat range that the differences fill, where a rank may hold it: it cuts a row."""
        n, size = self.last + 1 - self.first, prod(self.shape)
        if len(self.shape) < 2 or self.everywhere or self.differing < DENSE * n or n < ENOUGH:
            return None
        for parts in range(2, min(RANKS, size) + 1):
            step = -(-size // parts)
            rank = self.first // step
            room, end = step // 100 + 1, min((rank + 1) * step, size)
            if self.first - rank * step <= room and 0 <= end - self.last - 1 <= room:
                return Flat(self.first, self.last, parts, rank)
        width = self.shape[-1]
        cuts = self.first % width or (self.last + 1) % width
        return Flat(self.first, self.last) if cuts and n >= 2 * width else None

    def __str__(self) -> str:
        if self.everywhere:
            return "all over the tensor"
        ranges = []
        for axis, (lo, n, size) in enumerate(
            zip(self.box.offsets, self.box.shape, self.shape, strict=True)
        ):
            if n < size:
                noun = ("row", "column")[axis] if len(self.shape) == 2 else f"axis {axis} index"
                ranges.append(f"{noun} {lo}" if n == 1 else f"{noun}s {lo} to {lo + n - 1}")
        part = f"{self.differing / max(self.box.size, 1):.1%} of "
        return part + (", ".join(ranges) or "the tensor")


def block_around(axis: int, lo: int, n: int, size: int) -> Cut | None:
    """The block of 2 to 64 equal ones that `[lo, lo + n)` fills but for its very edges."""
    for parts in range(2, min(RANKS, size) + 1):
        for rank in {lo // -(-size // parts), (lo + n - 1) // -(-size // parts)}:
            first, count = share(size, parts, rank)
            room = TRIM * count
            if first <= lo <= first + room and first + count - room <= lo + n <= first + count:
                return Cut(axis, parts, rank)
    return None


def place_of(e: Evidence) -> Place:
    """Where the differences of a tensor lie."""
    held = [np.zeros(n, bool) for n in e.shape]
    differing, lowest, highest = 0, prod(e.shape), 0
    for w in e.windows():
        grid = w.unequal.reshape(w.box.shape)
        differing += int(np.count_nonzero(grid))
        if grid.any():
            flat = grid.reshape(-1)
            ends = (int(flat.argmax()), flat.size - 1 - int(flat[::-1].argmax()))
            near, far = (_index(e.shape, w.box, k) for k in ends)
            lowest, highest = min(lowest, near), max(highest, far)
        for axis, (lo, n) in enumerate(zip(w.box.offsets, w.box.shape, strict=True)):
            others = tuple(k for k in range(grid.ndim) if k != axis)
            held[axis][lo : lo + n] |= grid.any(axis=others)
    first = tuple(int(h.argmax()) for h in held)
    sizes = tuple(len(h) - int(h[::-1].argmax()) - lo for h, lo in zip(held, first, strict=True))
    return Place(Box(first, sizes), differing, e.shape, lowest, highest)


def _index(shape: tuple[int, ...], box: Box, k: int) -> int:
    """The flat index in a tensor of element `k` of a box of it."""
    at = 0
    inside = unravel(k, box.shape)
    for size, offset, i in zip(shape, box.offsets, inside, strict=True):
        at = at * size + offset + i
    return at


def copied_from(e: Evidence, place: Place) -> tuple[str, int] | None:
    """The side on which the block of a place is a copy of another block, and which one."""
    for side, name in ((e.b, "B"), (e.a, "A")):
        for cut in place.cuts or ():
            source = _copied(e, side, place.box, cut)
            if source is not None:
                return name, source
    return None


def parts_of(e: Evidence, box: Box) -> Iterator[Box]:
    """Windows of a box, small enough for the memory budget."""
    for part in windows(box.shape, e.pair.a.dtype.itemsize, e.budget.window_bytes // 2):
        offsets = tuple(o + p for o, p in zip(box.offsets, part.offsets, strict=True))
        yield Box(offsets, part.shape)


def _blocks(e: Evidence, side: Checkpoint, box: Box) -> Iterator[Bits]:
    whole = e.whole if side is e.a else Layout.of(e.pair.b.name, e.pair.b.shape)
    for part in parts_of(e, box):
        yield e.read(whole, part, side)


def _copied(e: Evidence, side: Checkpoint, box: Box, cut: Cut) -> int | None:
    """The block of the same side that a block is a copy of."""
    size = e.shape[cut.axis]
    first, count = share(size, cut.parts, cut.rank)
    whole = _on_axis(box, cut.axis, first, count)
    if whole.size < ENOUGH:
        return None
    for rank in range(cut.parts):
        lo, n = share(size, cut.parts, rank)
        if rank == cut.rank or n != count:
            continue
        other = _on_axis(box, cut.axis, lo, n)
        both = zip(_blocks(e, side, whole), _blocks(e, side, other), strict=True)
        if all(np.array_equal(x, y) for x, y in both):
            return rank
    return None


def _on_axis(box: Box, axis: int, lo: int, n: int) -> Box:
    offsets, shape = list(box.offsets), list(box.shape)
    offsets[axis], shape[axis] = lo, n
    return Box(tuple(offsets), tuple(shape))
