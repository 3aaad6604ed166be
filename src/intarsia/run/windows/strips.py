"""Windows whose bytes lie in files of the source as they are to lie in slots: they are moved from file to file.

A window's bytes are consecutive bytes of a target.  A file holds a stretch of them, or the same part of each of
several rows; where that is so on both sides the window is cut into strips, which the kernel reads, sums and writes
a block at a time.  How is worked out once for all windows that differ by the places of their bytes alone, and what
one call moves is put together of many windows by arithmetic on arrays.  Every other window goes through memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.format.base import Wrapping
from intarsia.frozen import frozen
from intarsia.kernel.moving import BLOCK_BYTES, SIDE, STRIP, Sides, Strips
from intarsia.layout import Layout, Piece
from intarsia.mesh import Box
from intarsia.planning.copy import box_copy, layout_of_box
from intarsia.planning.proof import Proven
from intarsia.run.sums.checksum import full
from intarsia.run.windows.slots import CutWindow, Pattern, Slots
from intarsia.value import Change

LEAST_BYTES = 8 << 10
"""Smaller windows are read, and written with what is around them, together with others."""

MOST_STRIPS = 256
"""A window of more is moved through memory: to write each by itself takes longer."""

MOST_KEPT = 1 << 12
"""Plans that are kept; those of more kinds of windows are worked out again."""


class StripPlace(NamedTuple):
    """What a file holds of a window: `width` bytes from `start` on, and as many from each of `rows` places that are
    `stride` apart.  In the file they follow each other from byte `at` on, counted from where the chunk or the slot
    with this `number` begins."""

    number: int
    at: int
    start: int
    rows: int
    stride: int
    width: int

    @property
    def first(self) -> int:
        """The byte of the window at which its first row begins."""
        return self.start if self.rows == 1 else self.start - self.start % self.stride

    @property
    def end(self) -> int:
        """The byte of the window at which its last row ends."""
        return self.first + (self.width if self.rows == 1 else self.rows * self.stride)

    def side(self, start: int, row_bytes: int) -> tuple[int, int, int, int]:
        """Its number, and what it holds of the rows of a strip that begins at byte `start` of the window."""
        if self.rows == 1:
            return self.number, self.at + start - self.start, 0, row_bytes
        row = (start - self.first) // self.stride
        return self.number, self.at + row * self.width, self.start % self.stride, self.width


@frozen
class StripPlan:
    """The strips of all windows that are alike.

    `file` of a side is the number of one of the `chunks` (a source, and which of its chunks) or, after those, of a box
    of the cut, from whose first byte `at` counts.  `tensors` are numbers of the layout's tensors, each with its bytes
    in the window; `summed` says whether sums are asked for.  `box_bytes` and `unlike` are the lengths of the boxes, and in
    what a CRC-32 of so many bytes differs from its remainder.  Something is written `around` boxes of these numbers: zeros
    in the gap before them, and what is wrapped around them.
    """

    chunks: Sequence[tuple[int, int]]
    cut: CutWindow
    strips: Strips
    sides: Sides
    tensors: Sequence[tuple[int, int]]
    box_bytes: NDArray[np.uint64]
    unlike: NDArray[np.uint32]
    around: Sequence[tuple[Wrapping | None, Sequence[int]]]
    summed: bool


class StripPlans:
    """The plans of windows, by what those have in common; `sizes` are the elements of the logical tensors."""

    def __init__(self, slots: Slots, sizes: Mapping[str, int]) -> None:
        self._slots = slots
        self._sizes = sizes
        self._kept: dict[Hashable, StripPlan | None] = {}

    def of(self, proven: Proven, window: Box) -> StripPlan | None:
        """How a window is moved from file to file; None where it is not."""
        target = proven.target
        if window.size * target.dtype.itemsize < LEAST_BYTES or not target.value.is_plain:
            return None
        for stored in proven.sources:
            if not Change(stored.dtype, target.dtype, stored.value, target.value).is_none:
                return None
        layout, pattern = target.layout, self._slots.pattern(target.name)
        sizes = (*map(self._sizes.get, layout.tensors),)
        key = pattern, window, target.dtype, proven.template, _places(layout), sizes
        if key in self._kept:
            return self._kept[key]
        found = _plan(proven, window, pattern, sizes)
        if len(self._kept) < MOST_KEPT:
            self._kept[key] = found
        return found


def _places(layout: Layout) -> Hashable:
    """What layouts have in common that differ by the names of their tensors alone."""
    if len(layout.pieces) == 1:
        (piece,) = layout.pieces
        return piece.at, piece.to, piece.loops
    order = {name: k for k, name in enumerate(layout.tensors)}
    return (*((order[p.tensor], p.at, p.to, p.loops) for p in layout.pieces),)


def _plan(
    proven: Proven, window: Box, pattern: Pattern, sizes: Sequence[int | None]
) -> StripPlan | None:
    """How windows that are alike are moved, by one of them."""
    target, size, cut = proven.target, proven.target.dtype.itemsize, pattern.cut(window)
    pieces = sorted(layout_of_box(target.layout, window).pieces, key=attrgetter("at"))
    ends = [0, *(piece.at + piece.run for piece in pieces)]
    if [*(piece.at for piece in pieces), window.size] != ends:
        return None
    recipe = proven.template.recipe(target.layout, window, proven.sources)
    if sum(piece.size for _, _, piece in recipe) != window.size:
        return None  # padding, or what `fill_box` refuses
    sources = [_place(piece, number, 0, size) for number, (_, _, piece) in enumerate(recipe)]
    targets = [
        _place(_within(window, each.box), number, each.first, size)
        for number, each in enumerate(cut.boxes, len(recipe))
    ]
    found = _cut(pieces, size, _all(sources), _all(targets))
    if found is None:
        return None
    numbers = {name: k for k, name in enumerate(target.layout.tensors)}
    named = dict.fromkeys(tensor for tensor, *_ in found)
    order = {name: k for k, name in enumerate(named)}
    lengths = dict.fromkeys(named, 0)
    strips, sides = list[tuple[int, ...]](), list[tuple[int, ...]]()
    for tensor, start, rows, row_bytes, froms, tos in found:
        length, whole = rows * row_bytes, sizes[numbers[tensor]]
        lengths[tensor] += length
        after = 0 if whole is None else whole * size - start - length
        strips.append((rows, row_bytes, start, after, order[tensor], len(froms), len(tos)))
        sides += [(*x, 0) for x in froms]
        sides += [(*x, x[0] - len(recipe)) for x in tos]
    box_bytes = [each.box.size * size for each in cut.boxes]
    return StripPlan(
        [(k, n) for k, n, _ in recipe],
        cut,
        np.array(strips, STRIP),
        np.array(sides, SIDE),
        [(numbers[name], length) for name, length in lengths.items()],
        np.array(box_bytes, np.uint64),
        np.array([full(0, n) for n in box_bytes], np.uint32),
        _around(cut, pattern.wrappings),
        summed=all(sizes[numbers[name]] is not None for name in named),
    )


def _around(
    cut: CutWindow, wrappings: Sequence[Wrapping | None]
) -> list[tuple[Wrapping | None, list[int]]]:
    """The numbers of boxes around which something is written, by what is wrapped around their slots."""
    found: dict[int, tuple[Wrapping | None, list[int]]] = {}
    for number, each in enumerate(cut.boxes):
        wrapping = wrappings[each.number]
        if each.first == 0 if wrapping is None else each.whole:
            found.setdefault(id(wrapping), (wrapping, []))[1].append(number)
    return [*found.values()]


def _within(window: Box, box: Box) -> Piece:
    """Which elements of a box are which of its window."""
    piece = box_copy(window, box)
    assert piece is not None, "a box of a cut is in its window"
    return piece.flip()


def _place(piece: Piece, number: int, first: int, size: int) -> StripPlace | None:
    """What a piece takes from a chunk or a slot, from its element `first` on, to a window."""
    at, to = (first + piece.at) * size, piece.to * size
    if count := piece.run:
        return StripPlace(number, at, to, 1, count * size, count * size)
    if len(piece.loops) != 2:
        return None
    rows, inner = piece.loops
    width, stride = inner.n * size, rows.to * size
    in_rows = inner.at == inner.to == 1 and rows.at == inner.n
    if not in_rows or not to % stride + width <= stride <= BLOCK_BYTES:
        return None
    return StripPlace(number, at, to, rows.n, stride, width)


def _all(places: Sequence[StripPlace | None]) -> list[StripPlace]:
    """Places, or none at all where there is not one for each."""
    found = [place for place in places if place is not None]
    return found if len(found) == len(places) else []


_Side = tuple[int, int, int, int]
_Strip = tuple[str, int, int, int, list[_Side], list[_Side]]
"""A tensor, its first byte, rows and their length, sources and targets."""


def _cut(
    pieces: Sequence[Piece], size: int, sources: Sequence[StripPlace], targets: Sequence[StripPlace]
) -> list[_Strip] | None:
    """The strips of a window, which is cut wherever a place or a piece of its layout begins or ends."""
    edges = {place.first for place in (*sources, *targets)}
    edges |= {place.end for place in (*sources, *targets)} | {piece.at * size for piece in pieces}
    if not sources or not targets or len(edges) - 1 > MOST_STRIPS:
        return None
    strips = list[_Strip]()
    near_sources, near_targets, near_pieces = _Near(sources), _Near(targets), iter(pieces)
    piece = next(near_pieces)
    for start, end in pairwise(sorted(edges)):
        if (piece.at + piece.run) * size <= start:
            piece = next(near_pieces)
        here, there = near_sources.at(start), near_targets.at(start)
        strides = {place.stride for place in (*here, *there) if place.rows > 1}
        row_bytes = strides.pop() if strides else 1
        if strides or start % row_bytes or end % row_bytes:
            return None
        froms, tos = ([x.side(start, row_bytes) for x in each] for each in (here, there))
        if not _is_whole(froms, row_bytes) or not _is_whole(tos, row_bytes):
            return None
        first = (piece.to - piece.at) * size + start
        strips.append((piece.tensor, first, (end - start) // row_bytes, row_bytes, froms, tos))
    return strips


def _is_whole(sides: Sequence[_Side], row_bytes: int) -> bool:
    """Whether sides are all of each row, each byte once."""
    end = 0
    for _, _, offset, width in sorted(sides, key=itemgetter(2)):
        if offset != end:
            return False
        end += width
    return end == row_bytes


class _Near:
    """Places that are asked for by bytes of the window, in their order."""

    def __init__(self, places: Iterable[StripPlace]) -> None:
        self._rest = sorted(places, key=lambda place: -place.first)
        self._held: list[StripPlace] = []

    def at(self, start: int) -> list[StripPlace]:
        """The places whose rows hold byte `start`."""
        self._held = [place for place in self._held if place.end > start]
        while self._rest and self._rest[-1].first <= start:
            self._held.append(self._rest.pop())
        return self._held
