"""Where one differing tensor is looked at first: rows all over it, and elements that tell something.

Where few elements differ, or nearly all are one number, rows alone refute next to nothing: whatever
moves such elements is right nearly everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod

import numpy as np

from intarsia.checking.diagnosis.hypothesis import Bits, BitsOfPair, Mask
from intarsia.layout import unravel
from intarsia.mesh import Box, Shape

SAMPLE_ROWS = 12
SAMPLE_WIDTH = 2048
SMALL = 16 << 10
"""A tensor of so many elements is its own sample."""

FEWEST = 32
"""Differing elements of either side, other than its usual one, below which a sample has too few of them."""

PARTS = 8
"""Stretches of a window of which each gives an element."""


def places(
    shape: Shape,
    first: tuple[int, ...],
    window: Callable[[Box], BitsOfPair],
    windows: Callable[[], Iterable[BitsOfPair]],
) -> tuple[Box, ...]:
    """Where to take the sample of a tensor whose element `first` differs."""
    boxes = sample_boxes(shape, first)
    if prod(shape) <= SMALL:
        return tuple(boxes)
    sampled = [window(box) for box in boxes]
    usual = most_common([w.x for w in sampled]), most_common([w.y for w in sampled])
    seen = zip(*[map(np.count_nonzero, _telling(w, *usual)[:2]) for w in sampled], strict=True)
    if all(sum(counts) >= FEWEST for counts in seen):
        return tuple(boxes)
    found = [list[tuple[int, ...]]() for _ in range(3)]
    for w in windows():
        for kept, marks in zip(found, _telling(w, *usual), strict=True):
            kept += [w.box.index_of(k) for k in _some(marks)]
    more = [_box_around(at, shape) for kept in found for at in _spread(kept)]
    return tuple(dict.fromkeys([*boxes, *more]))


def _telling(w: BitsOfPair, usual_x: int | None, usual_y: int | None) -> tuple[Mask, Mask, Mask]:
    """Elements that differ and are not the usual one of A, or of B; and equal ones that are not usual."""
    rare_x: Mask = np.full(w.x.shape, True) if usual_x is None else w.x != usual_x
    rare_y: Mask = np.full(w.y.shape, True) if usual_y is None else w.y != usual_y
    return w.unequal & rare_x, w.unequal & rare_y, ~w.unequal & rare_x


def most_common(held: Sequence[Bits]) -> int | None:
    """The one element that more than half of them are, if one is."""
    kinds, counts = np.unique(np.concatenate([x.reshape(-1) for x in held]), return_counts=True)
    most = int(counts.argmax())
    return kinds[most].item() if 2 * counts[most] > counts.sum() else None


def sample_boxes(shape: Shape, first: tuple[int, ...]) -> list[Box]:
    """Boxes of one row each (or of part of a long one), spread over a tensor."""
    if prod(shape) <= SMALL:
        return [Box.whole(shape)]
    *lead, last = shape
    count = prod(lead)
    spread = np.linspace(0, count - 1, min(count, SAMPLE_ROWS)).astype(int).tolist()
    width = min(last, SAMPLE_WIDTH)
    boxes: dict[tuple[int, ...], None] = {}
    if first:
        start = min(first[-1], last - width)
        boxes[(*first[:-1], start)] = None
    for k, row in enumerate(spread):
        place = unravel(row, lead)
        boxes[(*place, (last - width) * k // max(len(spread) - 1, 1))] = None
    return [Box(at, (*(1,) * len(lead), width)) for at in boxes]


def _some(marks: Mask) -> Iterator[int]:
    """The first mark of every stretch that has one."""
    step = -(-len(marks) // PARTS)
    for lo in range(0, len(marks), step):
        part = marks[lo : lo + step]
        at = int(part.argmax())
        if part[at]:
            yield lo + at


def _spread(found: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """As many as a sample has rows, from first to last."""
    count = min(len(found), SAMPLE_ROWS)
    return (found[int(k)] for k in np.linspace(0, len(found) - 1, count))


def _box_around(at: tuple[int, ...], shape: Shape) -> Box:
    """Part of the row that holds an element."""
    *lead, last = shape
    width = min(last, SAMPLE_WIDTH)
    start = min(at[-1] // width * width, last - width)
    return Box((*at[:-1], start), (*(1,) * len(lead), width))
