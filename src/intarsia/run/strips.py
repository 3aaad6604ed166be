"""Windows whose bytes lie in files of the source as they are to lie in slots: they are moved from file to file.

A window's bytes are consecutive bytes of a target.  A file holds a stretch of them, or the same part of each of
several rows; where that is so on both sides the window is cut into strips, which the kernel reads, sums and writes
a block at a time.  Every other window goes through memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from intarsia.errors import CoverageError
from intarsia.format.base import Slot
from intarsia.frozen import frozen
from intarsia.kernel.moving import BLOCK_BYTES, Moved, Side, Strip
from intarsia.layout import Piece
from intarsia.mesh import Box
from intarsia.planning.copy import Copy, box_copy, layout_of_box
from intarsia.planning.manifest import Target
from intarsia.planning.proof import Proven
from intarsia.run.slots import Cut
from intarsia.run.source import Source
from intarsia.run.sums.checksum import full, shift
from intarsia.run.sums.hashing import Sum, merged
from intarsia.run.sums.neighbours import Run
from intarsia.run.sums.tally import Tallied
from intarsia.value import Change

LEAST_BYTES = 128 << 10
"""Smaller windows are read and written together with others."""

LEAST_BYTES_OF_MANY = 2 << 20
"""… where many threads wait for the interpreter: it has more work with a window of strips than with one of many
that are cut alike."""

LEAST_STRIP_BYTES = 32 << 10
"""What strips have on average, at least: many short ones are better moved through memory."""


class Place(NamedTuple):
    """What a file holds of a window: `width` bytes from `start` on, and as many from each of `rows` places that are
    `stride` apart.  In the file they follow each other from byte `at` on; `number` is that of a box of the cut."""

    file: str
    at: int
    start: int
    rows: int
    stride: int
    width: int
    number: int

    @property
    def first(self) -> int:
        """The byte of the window at which its first row begins."""
        return self.start if self.rows == 1 else self.start - self.start % self.stride

    @property
    def end(self) -> int:
        """The byte of the window at which its last row ends."""
        return self.first + (self.width if self.rows == 1 else self.rows * self.stride)

    def side(self, start: int, row_bytes: int) -> Side:
        """What it holds of the rows of a strip that begins at byte `start` of the window."""
        if self.rows == 1:
            return Side(self.file, self.at + start - self.start, 0, row_bytes)
        row = (start - self.first) // self.stride
        return Side(self.file, self.at + row * self.width, self.start % self.stride, self.width)


@frozen
class InStrips:
    """A window of a target that is moved in strips; of each the logical tensor, and the boxes that it goes to."""

    target: Target
    window: Box
    cut: Cut
    strips: Sequence[Strip]
    tensors: Sequence[str]
    boxes: Sequence[Sequence[int]]

    def tallied(self, moved: Iterable[Moved], sizes: Mapping[str, int]) -> Tallied:
        """The sums of the window and the CRC-32 of each box, when its strips were moved.

        `sizes` are the elements of the logical tensors; those that are not in it are not summed.
        """
        itemsize = self.target.dtype.itemsize
        crcs, lengths = [0] * len(self.cut.boxes), [0] * len(self.cut.boxes)
        sums: list[dict[tuple[str, str], Sum]] = []
        summed = sizes.keys() >= set(self.tensors)
        for strip, tensor, boxes, found in zip(
            self.strips, self.tensors, self.boxes, moved, strict=True
        ):
            for number, side, crc in zip(boxes, strip.targets, found.target_crcs, strict=True):
                more = strip.rows * side.width
                crcs[number] = shift(crcs[number], more) ^ crc
                lengths[number] += more
            if summed:
                run = Run(strip.start, strip.rows * strip.row_bytes, sizes[tensor] * itemsize)
                sums.append({(self.target.name, tensor): run.sum(found.pages, found.crc)})
        if lengths != [each.box.size * itemsize for each in self.cut.boxes]:
            raise CoverageError(f"{sum(lengths):,} bytes of `{self.target.name}` were moved")
        return Tallied(merged(sums), [[full(*each)] for each in zip(crcs, lengths, strict=True)])


def in_strips(
    source: Source, proven: Proven, window: Box, cut: Cut, slots: Sequence[Slot]
) -> InStrips | None:
    """How a window is moved from file to file; None where it is not."""
    target, size = proven.target, proven.target.dtype.itemsize
    if not window.size or not target.value.is_plain:
        return None
    pieces = sorted(layout_of_box(target.layout, window).pieces, key=attrgetter("at"))
    ends = [0, *(piece.at + piece.run for piece in pieces)]
    if [*(piece.at for piece in pieces), window.size] != ends:
        return None
    sources, targets = _sources(source, proven, window), _targets(window, cut, slots, size)
    if sources is None or targets is None:
        return None
    return _cut(target, window, cut, pieces, sources, targets)


def _sources(source: Source, proven: Proven, window: Box) -> list[Place] | None:
    """Where the bytes of a window are; None where they are not all in files, as they are."""
    target, copies = proven.target, proven.copies(window)
    if proven.src is not source.manifest or sum(x.piece.size for x in copies) != window.size:
        return None  # padding, or what `fill_box` refuses
    if not all(
        _is_same(copy, target) and source.folder.can_move(copy.chunk.file) for copy in copies
    ):
        return None
    starts = source.starts(copies)
    if starts is None:
        return None
    found: list[Place] = []
    for copy, start in zip(copies, starts, strict=True):
        place = _place(copy.piece, copy.chunk.file, start, target.dtype.itemsize)
        if place is None:
            return None
        found.append(place)
    return found


def _is_same(copy: Copy, target: Target) -> bool:
    """Whether the elements of a copy stay as they are."""
    stored = copy.stored
    return Change(stored.dtype, target.dtype, stored.value, target.value).is_none


def _targets(window: Box, cut: Cut, slots: Sequence[Slot], size: int) -> list[Place] | None:
    """Where the bytes of a window go; None where a box is not the same part of each of several rows."""
    found: list[Place] = []
    for number, each in enumerate(cut.boxes):
        slot, piece = slots[each.number], box_copy(window, each.box)
        start = slot.start_bytes + each.first * size
        assert piece is not None, "a box of a cut is in its window"
        place = _place(piece.flip(), slot.file, start, size, number)
        if place is None:
            return None
        found.append(place)
    return found


def _place(piece: Piece, file: str, start_bytes: int, size: int, number: int = 0) -> Place | None:
    """What a piece takes from a file, whose elements begin at `start_bytes`, to a window."""
    at, to = start_bytes + piece.at * size, piece.to * size
    if count := piece.run:
        return Place(file, at, to, 1, count * size, count * size, number)
    if len(piece.loops) != 2:
        return None
    rows, inner = piece.loops
    width, stride = inner.n * size, rows.to * size
    in_rows = inner.at == inner.to == 1 and rows.at == inner.n
    if not in_rows or not to % stride + width <= stride <= BLOCK_BYTES:
        return None
    return Place(file, at, to, rows.n, stride, width, number)


def _cut(
    target: Target,
    window: Box,
    cut: Cut,
    pieces: Sequence[Piece],
    sources: list[Place],
    targets: list[Place],
) -> InStrips | None:
    """A window, cut into strips wherever a place or a piece of its layout begins or ends."""
    size = target.dtype.itemsize
    edges = {place.first for place in (*sources, *targets)}
    edges |= {place.end for place in (*sources, *targets)} | {piece.at * size for piece in pieces}
    if window.size * size < LEAST_STRIP_BYTES * (len(edges) - 1):
        return None
    strips, boxes, tensors = list[Strip](), list[list[int]](), list[str]()
    near_sources, near_targets, near_pieces = _Near(sources), _Near(targets), iter(pieces)
    piece = next(near_pieces)
    for start, end in pairwise(sorted(edges)):
        if piece.at * size + piece.run * size <= start:
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
        strips.append(Strip((end - start) // row_bytes, row_bytes, first, froms, tos))
        tensors.append(piece.tensor)
        boxes.append([x.number for x in there])
    return InStrips(target, window, cut, strips, tensors, boxes)


def _is_whole(sides: Sequence[Side], row_bytes: int) -> bool:
    """Whether sides are all of each row, each byte once."""
    end = 0
    for _, _, offset, width in sorted(sides, key=attrgetter("offset")):
        if offset != end:
            return False
        end += width
    return end == row_bytes


class _Near:
    """Places that are asked for by bytes of the window, in their order."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._rest = sorted(places, key=lambda place: -place.first)
        self._held: list[Place] = []

    def at(self, start: int) -> list[Place]:
        """The places whose rows hold byte `start`."""
        self._held = [place for place in self._held if place.end > start]
        while self._rest and self._rest[-1].first <= start:
            self._held.append(self._rest.pop())
        return self._held
