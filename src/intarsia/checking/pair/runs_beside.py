"""The runs of bytes that a window of a pair is on both sides, for all tensors that differ by name alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from intarsia.layout import Loop, Piece, meet
from intarsia.planning.proof.template import Recipe
from intarsia.planning.ranges import Ranges

MOST_RUNS = 1 << 12
"""A window of more runs than that is read instead."""

ChunkNumber = tuple[int, int]
"""A chunk by the number of its source and its own."""


class Half(NamedTuple):
    """One side of the runs of a window: the chunks that hold it; and for each run the number of its chunk
    among those, the byte of the chunk's elements at which it begins, and the bytes from row to row."""

    chunks: Sequence[ChunkNumber]
    numbers: Sequence[int]
    starts: Sequence[int]
    steps: Sequence[int]


class Beside(NamedTuple):
    """The runs of a window, for all tensors that differ by name alone."""

    left: Half
    right: Half
    rows: Sequence[int]
    row_bytes: Sequence[int]


def runs_beside(left: Recipe, right: Recipe, size: int, itemsize: int) -> Beside | None:
    """The runs of a window of so many elements; None where it does not consist of few of them."""
    met = _met(left, right)
    runs = [(a, b, run) for a, b, piece in met for run in _runs_of(piece, itemsize)]
    if len(runs) > MOST_RUNS or sum([r.rows * r.row_bytes for *_, r in runs]) != size * itemsize:
        return None
    return Beside(
        _half((a, r.at, r.at_step) for a, _, r in runs),
        _half((b, r.to, r.to_step) for _, b, r in runs),
        [r.rows for *_, r in runs],
        [r.row_bytes for *_, r in runs],
    )


def _half(runs: Iterable[tuple[ChunkNumber, int, int]]) -> Half:
    """One side of runs, each by its chunk, its first byte there and the bytes from row to row."""
    numbers: dict[ChunkNumber, int] = {}
    each = [(numbers.setdefault(chunk, len(numbers)), at, step) for chunk, at, step in runs]
    return Half([*numbers], *([run[k] for run in each] for k in range(3)))


class _RowRun(NamedTuple):
    """Rows that are consecutive bytes on both sides, from `at` and `to` on."""

    at: int
    to: int
    at_step: int
    to_step: int
    rows: int
    row_bytes: int


def _runs_of(piece: Piece, itemsize: int) -> Iterator[_RowRun]:
    """A piece as rows of bytes; none of it where it has none, or too many blocks of rows."""
    loops = piece.loops or (Loop(1, 1, 1),)
    *outer, cols = loops
    if cols.at != 1 or cols.to != 1:
        return
    rows = outer.pop() if outer else Loop(1, cols.n, cols.n)
    if min(rows.at, rows.to) < cols.n or prod([loop.n for loop in outer]) > MOST_RUNS:
        return
    steps = rows.at * itemsize, rows.to * itemsize
    for index in product(*[range(loop.n) for loop in outer]):
        at = piece.at + sum([x * loop.at for x, loop in zip(index, outer, strict=True)])
        to = piece.to + sum([x * loop.to for x, loop in zip(index, outer, strict=True)])
        yield _RowRun(at * itemsize, to * itemsize, *steps, rows.n, cols.n * itemsize)


def _met(left: Recipe, right: Recipe) -> Iterator[tuple[ChunkNumber, ChunkNumber, Piece]]:
    """Where copies of both sides fill the same elements of a window: from a chunk of one to a chunk of the other."""
    ours = sorted(((k, n, p.flip()) for k, n, p in left), key=lambda copy: copy[2].at)
    theirs = sorted(((k, n, p.flip()) for k, n, p in right), key=lambda copy: copy[2].at)
    starts = [p.at for *_, p in theirs]
    near = Ranges(starts, [p.at + p.span + 1 for *_, p in theirs])
    for k, n, p in ours:
        for i, j, q in theirs[near.near(p.at, p.at + p.span + 1)]:
            for piece in meet(p, q):
                yield (k, n), (i, j), piece.canonical()
