"""The elements of a tensor that differ: the box that holds them, and the block of a rank that it may be."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypothesis import ENOUGH, Mask
from intarsia.checking.diagnosis.where.runs import MarkRuns
from intarsia.document import Document, fields_of
from intarsia.frozen import frozen, frozen_open
from intarsia.layout import unravel
from intarsia.mesh import Box, share

NAMED = 3
"""How many ranges of an axis, chunks, and runs of one, a sentence names."""

RANKS = 64
FEW_BLOCKS = 16
"""Beyond, a block is described by its rows: one of so many is found around any few of them."""

DENSE = 0.8
"""The share of a block's elements that must differ before the whole block is held to be wrong."""

TRIM = 0.05
"""How far a block's edge may be missed: an element can be right by accident."""


@frozen
class AxisBlock:
    """Block `rank` of `parts` on one axis."""

    axis: int
    parts: int
    rank: int

    def __str__(self) -> str:
        return f"block {self.rank} of {self.parts} on axis {self.axis}"


@frozen
class AxisSpan(Document):
    """The indices of one axis with a difference: `[first, end)`, how many, and as ranges where few.

    `count` is None where the axis is too long to keep them.
    """

    first: int
    end: int
    count: int | None
    ranges: tuple[tuple[int, int], ...] = ()

    def as_json(self) -> dict[str, Any]:
        return fields_of(self, but=("end",)) | {"last": self.end - 1}


@frozen
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


@frozen_open
class DifferingElements:
    """How many elements of a tensor differ, and the smallest box that holds them.

    `axes` are the indices with a difference, `first` and `last` the flat indices of the outermost ones.
    """

    box: Box
    count: int
    shape: tuple[int, ...]
    axes: tuple[AxisSpan, ...]
    first: int
    last: int

    def index(self, flat: int) -> tuple[int, ...]:
        """A flat index as one for each axis; empty where nothing differs."""
        return unravel(flat, self.shape) if self.count else ()

    @property
    def dense(self) -> bool:
        return self.count >= DENSE * self.box.size

    @property
    def everywhere(self) -> bool:
        return self.dense and self.box.size >= (1 - TRIM) * prod(self.shape)

    @property
    def is_large(self) -> bool:
        """Whether it has several indices of every axis that it is cut on, and is one of few blocks."""
        found = self.cuts or ()
        several = all(self.box.shape[c.axis] > 1 for c in found)
        return several and all(c.parts <= FEW_BLOCKS for c in found)

    @property
    def cuts(self) -> tuple[AxisBlock, ...] | None:
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
        if len(self.shape) < 2 or self.everywhere or self.count < DENSE * n or n < ENOUGH:
            return None
        for parts in range(2, min(RANKS, size) + 1):
            step = -(-size // parts)
            rank = self.first // step
            room, end = step // 100 + 1, min((rank + 1) * step, size)
            if self.first - rank * step <= room and 0 <= end - self.last - 1 <= room:
                if parts > FEW_BLOCKS or n <= self.shape[-1]:
                    break  # a row or so, of which any number of ranks would have one
                return Flat(self.first, self.last, parts, rank)
        width = self.shape[-1]
        cuts = self.first % width or (self.last + 1) % width
        return Flat(self.first, self.last) if cuts and n >= 2 * width else None

    def __str__(self) -> str:
        if self.everywhere:
            return "all over the tensor"
        named = [_named(axis, s, self.shape) for axis, s in enumerate(self.axes)]
        grid = prod(s.count or s.end - s.first for s in self.axes)
        share = self.count / max(grid, 1)
        part = f"{share:.1%}" if share >= 0.0005 else "less than 0.1%"
        return f"{part} of " + (", ".join(x for x in named if x) or "the tensor")


def _named(axis: int, span: AxisSpan, shape: tuple[int, ...]) -> str:
    """The indices of an axis in words, and nothing where they are all of them."""
    count = span.count or span.end - span.first
    if count == shape[axis]:
        return ""
    if len(shape) == 2:
        noun = f"{('row', 'column')[axis]}{'' if count == 1 else 's'}"
    else:
        noun = f"axis {axis} {'index' if count == 1 else 'indices'}"
    few = span.ranges if len(span.ranges) <= NAMED else ()
    ranges = few or ((span.first, span.end),)
    listed = " and ".join(str(lo) if hi - lo == 1 else f"{lo} to {hi - 1}" for lo, hi in ranges)
    some = f"{count:,} of " if not few and count < span.end - span.first else ""
    return f"{some}{noun} {listed}"


def block_around(axis: int, lo: int, n: int, size: int) -> AxisBlock | None:
    """The block of 2 to 64 ones that `[lo, lo + n)` fills but for its very edges: of equal ones, if it is one of those.

    >>> str(block_around(0, 60, 4, 64)), str(block_around(0, 34, 16, 50))
    ('block 15 of 16 on axis 0', 'block 2 of 3 on axis 0')
    """
    for parts in sorted(range(2, min(RANKS, size) + 1), key=lambda parts: size % parts > 0):
        for rank in {lo // -(-size // parts), (lo + n - 1) // -(-size // parts)}:
            first, count = share(size, parts, rank)
            room = TRIM * count
            if first <= lo <= first + room and first + count - room <= lo + n <= first + count:
                return AxisBlock(axis, parts, rank)
    return None


def differing_elements(e: Evidence) -> DifferingElements:
    """Which elements of a tensor differ."""
    # One byte for every index of an axis, where that is little beside a window.
    kept = [np.zeros(n if n <= e.budget.window_bytes else 0, bool) for n in e.shape]
    reach = [[n, 0] for n in e.shape]
    flat = MarkRuns()
    at = 0
    for w in e.windows():
        flat.add(at, w.unequal)
        at += w.box.size
        if not w.unequal.any():
            continue
        grid = w.unequal.reshape(w.box.shape)
        for axis, (lo, n) in enumerate(zip(w.box.offsets, w.box.shape, strict=True)):
            others = tuple(k for k in range(grid.ndim) if k != axis)
            marks = np.asarray(grid.any(axis=others))
            ends = lo + int(marks.argmax()), lo + n - int(marks[::-1].argmax())
            reach[axis] = [min(reach[axis][0], ends[0]), max(reach[axis][1], ends[1])]
            if len(kept[axis]):
                kept[axis][lo : lo + n] |= marks
    axes = tuple(
        _span(flat if len(e.shape) == 1 else None, m, lo, hi)
        for m, (lo, hi) in zip(kept, reach, strict=True)
    )
    box = Box(tuple(s.first for s in axes), tuple(s.end - s.first for s in axes))
    return DifferingElements(box, flat.marks, e.shape, axes, flat.first, flat.end - 1)


def _span(runs: MarkRuns | None, marks: Mask, first: int, end: int) -> AxisSpan:
    """The indices of an axis: runs of them where it is the only axis, otherwise what is marked."""
    if runs is None:
        runs = MarkRuns()
        runs.add(0, marks)
    return AxisSpan(first, end, runs.marks or None, runs.few)
