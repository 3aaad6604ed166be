"""Which of a tensor's chunks are wrong: the files, and whether they hold another chunk's bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypothesis import same
from intarsia.checking.diagnosis.places import DENSE, parts_of
from intarsia.checkpoint import Checkpoint
from intarsia.layout import Layout
from intarsia.planning.manifest import Chunk, Stored
from intarsia.run.checksum import crc32

MOST = 4096


@dataclass(frozen=True, slots=True)
class Chunks:
    """The files whose chunks of a tensor differ; `dense` where they differ as wholes.

    `copied` is the side on which each of them holds the elements of another chunk.  `most` says
    that these are more than half of them.
    """

    files: tuple[str, ...] = ()
    dense: bool = False
    copied: str = ""
    most: bool = False


@dataclass(slots=True)
class _Seen:
    file: str
    shape: tuple[int, ...]
    elements: int
    differing: int
    content: tuple[int, ...]


def wrong_chunks(e: Evidence) -> Chunks:
    """The chunks that hold the differences, of B or else of A."""
    best = Chunks()
    for side, name in ((e.b, "B"), (e.a, "A")):
        logical = e.pair.b if side is e.b else e.pair.a
        stored = side.manifest.sources.get(logical.name, ())
        chunks = [(s, c) for s in stored for c in s.chunks]
        if len(side.manifest.files) < 2 or len(chunks) > MOST:
            continue
        seen = [x for s, c in chunks if (x := _see(e, side, s, c)).elements]
        wrong = [x for x in seen if x.differing]
        dense = len(wrong) < len(seen) and all(x.differing >= DENSE * x.elements for x in wrong)
        copied = name if dense and _are_copies(wrong, seen) else ""
        files = tuple(sorted({x.file for x in wrong}))
        most = 2 * len(wrong) > len(seen)
        found = Chunks(files if dense or len(files) == 1 else (), dense, copied, most)
        if copied or (found.files and not best.files):
            best = found
    return best


def _see(e: Evidence, side: Checkpoint, stored: Stored, chunk: Chunk) -> _Seen:
    """One chunk on both sides, as far as it holds elements of this tensor."""
    logical = e.pair.b if side is e.b else e.pair.a
    pieces = tuple(p for p in stored.layout.pieces if p.tensor == logical.name)
    mine = Layout(stored.shape, pieces)
    if not pieces:
        return _Seen(chunk.file, chunk.box.shape, 0, 0, ())
    left, right = (mine.rename({logical.name: x.name}) for x in (e.pair.a, e.pair.b))
    held = mine.box(chunk.box.offsets, chunk.box.shape).mapped
    differing, content = 0, []
    for box in parts_of(e, chunk.box) if held else ():
        x, y = e.read(left, box), e.read(right, box, e.b)
        differing += int(np.count_nonzero(~same(x, y, e.pair.a.dtype, e.pair.b.dtype)))
        content.append(crc32((y if side is e.b else x).data))
    return _Seen(chunk.file, chunk.box.shape, held, differing, tuple(content))


def _are_copies(wrong: list[_Seen], seen: list[_Seen]) -> bool:
    sound = [x for x in seen if not x.differing]
    return bool(wrong) and all(
        any(x.content == y.content and x.shape == y.shape for y in sound) for x in wrong
    )
