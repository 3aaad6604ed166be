"""Whether boxes tile a tensor: no gap, no overlap."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from intarsia.errors import CoverageError
from intarsia.frozen import frozen
from intarsia.mesh import Box, Shape


@frozen
class TilingFault:
    """Why boxes do not tile a tensor.

    `boxes` are the one that leaves it or the two that overlap; `missing` counts the elements that no
    box holds, and `first` is the first of them.
    """

    text: str
    boxes: tuple[Box, ...] = ()
    missing: int = 0
    first: Shape | None = None

    @property
    def overlap(self) -> tuple[Box, Box] | None:
        """Two boxes that hold the same elements."""
        return (self.boxes[0], self.boxes[1]) if len(self.boxes) == 2 else None

    def __str__(self) -> str:
        return self.text


def tiling_fault(shape: Shape, boxes: Sequence[Box]) -> TilingFault | None:
    """None where the boxes tile the tensor; otherwise what is wrong.

    Boxes that lie inside the tensor, do not overlap, and have its volume in sum, tile it.

    >>> str(tiling_fault((4, 2), [Box((0, 0), (2, 2)), Box((3, 0), (1, 2))]))
    '2 of 8 elements are in none of 2 parts; first missing [2, 0]'
    """
    whole = prod(shape)
    for box in boxes:
        if len(box.shape) != len(shape):
            axes = f"{len(box.shape)} axes, the tensor has {len(shape)}"
            return TilingFault(f"part {box} has {axes}", (box,))
        for o, n, size in zip(box.offsets, box.shape, shape, strict=True):
            if o < 0 or n < 0 or o + n > size:
                text = f"part {box} leaves the tensor of shape {list(shape)}"
                return TilingFault(text, (box,))
    filled = [box for box in boxes if box.size]
    if (both := first_overlap(filled)) is not None:
        return TilingFault(f"parts {both[0]} and {both[1]} overlap", both)
    covered = sum(box.size for box in filled)
    if covered == whole:
        return None
    missing = first_missing(shape, filled)
    return TilingFault(
        f"{whole - covered:,} of {whole:,} elements are in none of {len(filled)} parts;"
        f" first missing {list(missing or ())}",
        missing=whole - covered,
        first=missing,
    )


def check_tiling(name: str, shape: Shape, boxes: Sequence[Box]) -> None:
    """Raise where boxes that ranks hold of a tensor do not tile it, so that it cannot be saved."""
    if (fault := tiling_fault(shape, boxes)) is not None:
        raise CoverageError(
            f"what ranks hold of `{name}` does not tile it: {fault}",
            hint="every rank of the model's mesh must call save, each with its own part",
        )


def first_overlap(boxes: Sequence[Box]) -> tuple[Box, Box] | None:
    """Two boxes that share an element, found by sweeping along the axis with most cuts."""
    if len(boxes) < 2:
        return None
    axes = range(len(boxes[0].shape))
    if not axes:
        return boxes[0], boxes[1]
    axis = max(axes, key=lambda a: len({box.offsets[a] for box in boxes}))
    active: list[Box] = []
    for box in sorted(boxes, key=lambda b: b.offsets[axis]):
        active = [a for a in active if a.offsets[axis] + a.shape[axis] > box.offsets[axis]]
        for other in active:
            if box.meet(other) is not None:
                return other, box
        active.append(box)
    return None


def first_missing(shape: Shape, boxes: Sequence[Box]) -> Shape | None:
    """The first index, in row-major order, that no box holds."""
    if not shape:
        return None if boxes else ()
    cuts = {0, shape[0]}
    for box in boxes:
        cuts |= {box.offsets[0], box.offsets[0] + box.shape[0]}
    for lo in sorted(cuts)[:-1]:
        inside = [
            Box(b.offsets[1:], b.shape[1:])
            for b in boxes
            if b.offsets[0] <= lo < b.offsets[0] + b.shape[0]
        ]
        rest = first_missing(shape[1:], inside)
        if rest is not None:
            return (lo, *rest)
    return None
