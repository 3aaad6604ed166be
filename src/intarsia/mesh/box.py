"""Rectangular parts of tensors, and how those of a weight and of its scales keep in step."""

from __future__ import annotations

from math import prod

from intarsia.frozen import frozen
from intarsia.layout.cover import unravel

Shape = tuple[int, ...]


@frozen
class Box:
    """A rectangular part of a tensor: its first index on every axis, and its shape."""

    offsets: Shape
    shape: Shape

    @staticmethod
    def whole(shape: Shape) -> Box:
        return Box((0,) * len(shape), shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """What selects the box from its tensor."""
        return tuple(slice(o, o + n) for o, n in zip(self.offsets, self.shape, strict=True))

    def index_of(self, element: int) -> tuple[int, ...]:
        """The index in the tensor of an element of the box, counted in row-major order."""
        inside = unravel(element, self.shape)
        return tuple(o + i for o, i in zip(self.offsets, inside, strict=True))

    def meet(self, other: Box) -> Box | None:
        """The part that both hold, or None where that is empty."""
        offsets, shape = [], []
        for a, n, b, m in zip(self.offsets, self.shape, other.offsets, other.shape, strict=True):
            lo, hi = max(a, b), min(a + n, b + m)
            if lo >= hi:
                return None
            offsets.append(lo)
            shape.append(hi - lo)
        return Box(tuple(offsets), tuple(shape))

    def moved(self, by: Shape) -> Box:
        """The same box, so much further on each axis."""
        return Box(tuple(o + d for o, d in zip(self.offsets, by, strict=True)), self.shape)

    def on_axis(self, axis: int, first: int, count: int) -> Box:
        """The same box with other indices, `[first, first + count)`, on one axis."""
        offsets, shape = list(self.offsets), list(self.shape)
        offsets[axis], shape[axis] = first, count
        return Box(tuple(offsets), tuple(shape))

    def __repr__(self) -> str:
        return f"Box({self.offsets}, {self.shape})"

    def __str__(self) -> str:
        ranges = (f"{o}:{o + n}" for o, n in zip(self.offsets, self.shape, strict=True))
        return f"[{', '.join(ranges)}]"


@frozen
class Grid:
    """What keeps tensors in step that a mesh cuts together, or not at all: a weight and its scales.

    The mesh cuts `shape`, the weight's.  Every cut falls on a multiple of `step` (0: there is none
    on this axis), or nothing is cut.  This tensor has one element for `per` elements of the weight
    on each of its own axes; 0 where all ranks have all of that axis.

    >>> Grid((256, 512), (128, 128), (128, 128)).follow(Box((128, 0), (128, 512)), (2, 4))
    Box((1, 0), (1, 4))
    """

    shape: Shape
    step: Shape
    per: Shape

    def allows(self, box: Box) -> bool:
        """Whether a part of the weight lies between steps."""
        for o, n, size, step in zip(box.offsets, box.shape, self.shape, self.step, strict=True):
            if n == size:
                continue
            if not step or o % step or ((o + n) % step and o + n != size):
                return False
        return True

    def follow(self, box: Box, shape: Shape) -> Box:
        """The part of this tensor that goes with a part of the weight."""
        offsets, sizes = [0] * len(shape), list(shape)
        for axis, per in enumerate(self.per):
            if per:
                o, n = box.offsets[axis], box.shape[axis]
                offsets[axis] = -(-o // per)
                sizes[axis] = -(-(o + n) // per) - offsets[axis]
        return Box(tuple(offsets), tuple(sizes) if box.size else (0,) * len(sizes))
