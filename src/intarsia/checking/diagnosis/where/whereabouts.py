"""Whereabouts of differences: indices on every axis, and for both sides ranks, files and bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from intarsia.checking.diagnosis.where.elements import NAMED, AxisBlock, DifferingElements
from intarsia.checking.diagnosis.where.runs import PAGE_BYTES
from intarsia.document import Document
from intarsia.frozen import frozen
from intarsia.mesh import Box

Range = tuple[int, int]


@frozen
class DifferingChunk(Document):
    """What differs in one chunk of a stored tensor, and its bytes `[start_bytes, end_bytes)`.

    The bytes are None where no file holds the elements.  `held` counts those that the chunk has
    of the tensor, `runs` are all stretches of bytes where they are few, `page` is the size of the
    units of the file that they fill exactly, or 0; `zero` says that all of them are zero here.
    """

    file: str
    rank: int | None
    tensor: str
    box: Box
    blocks: tuple[AxisBlock, ...]
    held: int
    elements: int
    start_bytes: int | None = None
    end_bytes: int | None = None
    runs: tuple[Range, ...] = ()
    run_count: int | None = None
    page: int = 0
    zero: bool = False

    def as_json(self) -> dict[str, Any]:
        box = zip(self.box.offsets, self.box.shape, strict=True)
        return {
            "file": self.file,
            "bytes": None if self.start_bytes is None else [self.start_bytes, self.end_bytes],
            "runs": [list(r) for r in self.runs],
            "run_count": self.run_count,
            "page": self.page,
            "elements": self.elements,
            "rank": self.rank,
            "tensor": self.tensor,
            "box": [[o, o + n] for o, n in box],
            "blocks": [{"axis": c.axis, "index": c.rank, "of": c.parts} for c in self.blocks],
        }

    def __str__(self) -> str:
        rank = [] if self.rank is None else [f"rank {self.rank}"]
        by = ", ".join([*rank, *map(str, self.blocks)])
        text = self.file + (f" ({by})" if by else "")
        if self.start_bytes is None or self.end_bytes is None:
            return text
        runs = self.runs
        if self.run_count is None or not 0 < len(runs) <= NAMED:
            many = f"{self.run_count:,} runs within " if (self.run_count or 0) > 1 else ""
            text, runs = f"{text} {many}", ((self.start_bytes, self.end_bytes),)
        text = f"{text.rstrip()} bytes " + ", ".join(f"[{lo:,}:{hi:,})" for lo, hi in runs)
        return text + (f", whole {unit(self.page)}s" if self.page else "")


@frozen
class DifferingChunks(Document):
    """The chunks of one side with a difference, the first of them, and how many there are more.

    `unseen` counts those that were not looked at, being too many.
    """

    chunks: tuple[DifferingChunk, ...] = ()
    more: int = 0
    unseen: int = 0

    def __str__(self) -> str:
        if self.unseen:
            return f"{self.unseen:,} chunks, too many to look at"
        rest = len(self.chunks) - NAMED + self.more
        text = "; ".join(map(str, self.chunks[:NAMED]))
        return text + (f"; and {rest:,} chunks more" if rest > 0 else "")


@frozen
class Whereabouts(Document):
    """Where the differences of one tensor lie: which elements, and the chunks of either side with some.

    `files` are those whose chunks differ, of the side `holder`, and `dense` says that these chunks
    differ as wholes: of B, or of A where they do so in A alone.  `copied` is the side on which each of them holds the elements of another
    chunk, and `most` says that they are more than half of all.
    """

    differing: DifferingElements
    a: DifferingChunks = DifferingChunks()
    b: DifferingChunks = DifferingChunks()
    files: tuple[str, ...] = ()
    holder: str = ""
    dense: bool = False
    copied: str = ""
    most: bool = False

    @property
    def first(self) -> tuple[int, ...]:
        """The index of the first difference."""
        return self.differing.index(self.differing.first)

    @property
    def last(self) -> tuple[int, ...]:
        """The index of the last difference."""
        return self.differing.index(self.differing.last)

    @property
    def elements(self) -> int:
        """How many elements differ."""
        return self.differing.count

    @property
    def turned(self) -> Whereabouts:
        """The same with A and B in each other's place."""
        return replace(self, a=self.b, b=self.a)

    def as_json(self) -> dict[str, Any]:
        return {
            "first": list(self.first),
            "last": list(self.last),
            "elements": self.elements,
            "axes": [s.as_json() for s in self.differing.axes],
            "a": self.a.as_json(),
            "b": self.b.as_json(),
        }

    def __str__(self) -> str:
        a, b = str(self.a), str(self.b)
        files = f"in A and B {b}" if a == b else f"in B {b}; in A {a}"
        return f"from {list(self.first)} to {list(self.last)}, {files}"


def unit(size: int) -> str:
    """A unit of a disk, in words.

    >>> unit(4096), unit(512)
    ('4 KiB page', '512-byte sector')
    """
    return "4 KiB page" if size == PAGE_BYTES else f"{size}-byte sector"
