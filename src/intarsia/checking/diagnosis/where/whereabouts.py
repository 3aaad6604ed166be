"""Whereabouts of differences: indices on every axis, and for both sides ranks, files and bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from intarsia.checking.diagnosis.where.stretches import PAGE_BYTES
from intarsia.mesh import Box

Range = tuple[int, int]

TOLD = 3
"""How many chunks, and runs of one, a sentence names."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Block `rank` of `parts` on one axis."""

    axis: int
    parts: int
    rank: int

    def __str__(self) -> str:
        return f"block {self.rank} of {self.parts} on axis {self.axis}"


@dataclass(frozen=True, slots=True)
class Span:
    """The indices of one axis with a difference: `[first, end)`, how many, and as ranges where few.

    `count` is None where the axis is too long to keep them.
    """

    first: int
    end: int
    count: int | None
    ranges: tuple[Range, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "first": self.first,
            "last": self.end - 1,
            "count": self.count,
            "ranges": [list(r) for r in self.ranges],
        }


@dataclass(frozen=True, slots=True)
class Spot:
    """What differs in one chunk of a stored tensor, and its bytes `[start_bytes, end_bytes)`.

    The bytes are None where no file holds the elements.  `held` counts those that the chunk has
    of the tensor, `runs` are all stretches of bytes where they are few, `page` is the size of the
    units of the file that they fill exactly, or 0; `zero` says that all of them are zero here.
    """

    file: str
    rank: int | None
    tensor: str
    box: Box
    blocks: tuple[Cut, ...]
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
        if self.run_count is None or not 0 < len(runs) <= TOLD:
            many = f"{self.run_count:,} runs within " if (self.run_count or 0) > 1 else ""
            text, runs = f"{text} {many}", ((self.start_bytes, self.end_bytes),)
        text = f"{text.rstrip()} bytes " + ", ".join(f"[{lo:,}:{hi:,})" for lo, hi in runs)
        return text + (f", whole {unit(self.page)}s" if self.page else "")


@dataclass(frozen=True, slots=True)
class Spots:
    """The chunks of one side with a difference, the first of them, and how many there are more.

    `unseen` counts those that were not looked at, being too many.
    """

    spots: tuple[Spot, ...] = ()
    more: int = 0
    unseen: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "chunks": [s.as_json() for s in self.spots],
            "more": self.more,
            "unseen": self.unseen,
        }

    def __str__(self) -> str:
        if self.unseen:
            return f"{self.unseen:,} chunks, too many to look at"
        rest = len(self.spots) - TOLD + self.more
        text = "; ".join(map(str, self.spots[:TOLD]))
        return text + (f"; and {rest:,} chunks more" if rest > 0 else "")


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where the differences of one tensor lie, from the first to the last."""

    first: tuple[int, ...]
    last: tuple[int, ...]
    elements: int
    axes: tuple[Span, ...]
    a: Spots
    b: Spots

    @property
    def turned(self) -> Whereabouts:
        """The same with A and B in each other's place."""
        return replace(self, a=self.b, b=self.a)

    def as_json(self) -> dict[str, Any]:
        return {
            "first": list(self.first),
            "last": list(self.last),
            "elements": self.elements,
            "axes": [s.as_json() for s in self.axes],
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
