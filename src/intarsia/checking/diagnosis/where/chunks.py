"""Which of a tensor's chunks are wrong: the files, and whether they hold another chunk's bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypothesis import Mask
from intarsia.checking.diagnosis.where.elements import (
    DENSE,
    AxisBlock,
    DifferingElements,
    differing_elements,
)
from intarsia.checking.diagnosis.where.runs import MarkRuns, Sectors
from intarsia.checking.diagnosis.where.whereabouts import (
    DifferingChunk,
    DifferingChunks,
    Whereabouts,
)
from intarsia.checking.pair.differing import same
from intarsia.checkpoint import Checkpoint
from intarsia.format.registry import format_named
from intarsia.layout import Layout, Piece
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Stored
from intarsia.planning.window import flat_start
from intarsia.run.sums.checksum import crc32

MOST = 4096
KEPT = 16
"""How many of the chunks that differ are listed one by one."""


@dataclass(slots=True)
class _Compared:
    stored: Stored
    chunk: Chunk
    elements: int
    differing: int = 0
    zero: bool = True
    content: list[int] = field(default_factory=list)
    runs: MarkRuns = field(default_factory=MarkRuns)
    page: int = 0
    reach: tuple[int, int] | None = None


def whereabouts_of(e: Evidence) -> Whereabouts:
    """Which elements of a tensor differ, and which chunks of B and of A hold them."""
    elements = differing_elements(e)
    best, differing = Whereabouts(elements), {}
    for side, name in ((e.b, e.right), (e.a, e.left)):
        logical = e.logical(side)
        stored = side.manifest.sources.get(logical.name, ())
        chunks = [(s, c) for s in stored for c in s.chunks]
        many = len(chunks) > MOST
        if many:
            chunks = [(s, c) for s, c in chunks if _may_differ(s, c, logical.name, elements)]
        if len(chunks) > MOST:
            differing[name] = DifferingChunks(unseen=len(chunks))
            continue
        every = [x for s, c in chunks if (x := _compared(e, side, s, c)).elements]
        wrong = [x for x in every if x.differing]
        listed = tuple(_differing_chunk(side, x) for x in wrong[:KEPT])
        differing[name] = DifferingChunks(listed, len(wrong) - len(listed))
        if many or len(side.manifest.files) < 2:
            continue
        dense = len(wrong) < len(every) and all(x.differing >= DENSE * x.elements for x in wrong)
        copied = name if dense and _are_copies(wrong, every) else ""
        files = tuple(sorted({x.chunk.file for x in wrong}))
        if not dense and len(files) != 1:
            files = ()
        if copied or (files and (not best.files or dense > best.dense)):
            most = 2 * len(wrong) > len(every)
            best = Whereabouts(
                elements, files=files, holder=name, dense=dense, copied=copied, most=most
            )
    return replace(best, a=differing[e.left], b=differing[e.right])


def _may_differ(stored: Stored, chunk: Chunk, name: str, elements: DifferingElements) -> bool:
    """Whether a chunk holds elements between the first difference and the last."""
    lo, hi = elements.first, elements.last
    held = stored.layout.box(chunk.box.offsets, chunk.box.shape)
    return any(p.tensor == name and p.to <= hi and p.to + p.flip().span >= lo for p in held.pieces)


def _compared(e: Evidence, side: Checkpoint, stored: Stored, chunk: Chunk) -> _Compared:
    """One chunk on both sides, as far as it holds elements of this tensor."""
    logical = e.logical(side)
    pieces = tuple(p for p in stored.layout.pieces if p.tensor == logical.name)
    mine = Layout(stored.shape, pieces)
    held = mine.box(chunk.box.offsets, chunk.box.shape).mapped if pieces else 0
    found = _Compared(stored, chunk, held)
    if not held:
        return found
    left, right = (mine.rename({logical.name: x.name}) for x in (e.pair.a, e.pair.b))
    located = None if chunk.file in side.manifest.in_memory_files else side.locate(stored, chunk)
    start = located.start_bytes if located and located.piece is None else None
    sectors, size = Sectors(), stored.dtype.itemsize
    for box in e.parts_of(chunk.box):
        x, y = e.read(left, box), e.read(right, box, e.b)
        unequal = ~same(x, y, e.pair.a.dtype, e.pair.b.dtype)
        own = y if side is e.b else x
        found.content.append(crc32(own.data))
        found.differing += int(np.count_nonzero(unequal))
        found.zero = found.zero and not own[unequal].any()
        at = flat_start(box, chunk.box)
        if located and located.piece is not None:
            found.reach = _reach(located.piece, np.flatnonzero(unequal) + at, found.reach)
        if start is not None:
            found.runs.add(at, unequal)
            layout = mine.box(box.offsets, box.shape) if held < chunk.box.size else None
            sectors.add(start + at * size, size, unequal, _marked(layout) if layout else None)
    found.page = sectors.close() if start is not None and found.differing else 0
    return found


def _reach(
    piece: Piece, elements: NDArray[np.int64], before: tuple[int, int] | None
) -> tuple[int, int] | None:
    """The first and last places that a chunk in another order has for row-major elements."""
    if not len(elements):
        return before
    places = sum((elements // x.to % x.n * x.at for x in piece.loops), np.full(1, piece.at))
    ends = int(places.min()), int(places.max())
    return (min(before[0], ends[0]), max(before[1], ends[1])) if before else ends


def _marked(layout: Layout) -> Mask | None:
    """The places of a layout that are no padding; None where none is."""
    if layout.mapped == layout.size:
        return None
    marks: NDArray[np.bool_] = np.zeros(layout.size, np.bool_)
    for p in layout.pieces:
        shape, strides = tuple(x.n for x in p.loops), tuple(x.at for x in p.loops)
        part: Mask = np.ndarray(shape, np.bool_, marks.data, p.at, strides)
        part[...] = True
    return marks


def _differing_chunk(side: Checkpoint, x: _Compared) -> DifferingChunk:
    """Where one chunk differs, in the bytes of its file."""
    chunk, file = x.chunk, x.chunk.file
    rank = format_named(side.manifest.format).rank_of(file)
    found = DifferingChunk(
        file, rank, x.stored.on_disk, chunk.box,
        _blocks(chunk.box, x.stored.chunks), x.elements, x.differing, zero=x.zero,
    )  # fmt: skip
    if file in side.manifest.in_memory_files:
        return found
    start, size = side.locate(x.stored, chunk).start_bytes, x.stored.dtype.itemsize
    if x.reach is not None:
        first, last = x.reach
        end = start + (last + 1) * size
        return replace(found, start_bytes=start + first * size, end_bytes=end)
    return replace(
        found,
        start_bytes=start + x.runs.first * size,
        end_bytes=start + x.runs.end * size,
        runs=tuple((start + lo * size, start + hi * size) for lo, hi in x.runs.few),
        run_count=x.runs.count,
        page=x.page,
    )


def _blocks(box: Box, chunks: Sequence[Chunk]) -> tuple[AxisBlock, ...]:
    """Which block a chunk is, on each axis that is cut."""
    found = []
    for axis, offset in enumerate(box.offsets):
        offsets = sorted({c.box.offsets[axis] for c in chunks if c.box.size})
        if len(offsets) > 1:
            found.append(AxisBlock(axis, len(offsets), offsets.index(offset)))
    return tuple(found)


def _are_copies(wrong: list[_Compared], every: list[_Compared]) -> bool:
    sound = [x for x in every if not x.differing]
    return bool(wrong) and all(
        any(x.content == y.content and x.chunk.box.shape == y.chunk.box.shape for y in sound)
        for x in wrong
    )
