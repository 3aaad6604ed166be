"""Windows of pairs compared in the files of both sides, where those hold the same elements as runs of bytes.

A block of each side stays in a core's cache while it is compared, and what runs there are is worked out
once for all tensors that differ by name alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import NamedTuple

from intarsia.checking.pair.pairs import Pair
from intarsia.checkpoint import Checkpoint
from intarsia.dtypes import DType
from intarsia.errors import IntarsiaError, StoreError
from intarsia.kernel.comparing import NO_FILE
from intarsia.kernel.library import has_kernel
from intarsia.layout import Loop, Piece, meet
from intarsia.mesh import Box
from intarsia.planning.proof import Proven
from intarsia.planning.proof.template import Recipe, Template
from intarsia.planning.ranges import Ranges
from intarsia.run.source import Begins
from intarsia.store.reading.comparing import Addresses, Places, Runs, equal_runs
from intarsia.value import PLAIN

MOST_KEPT = 1 << 14
"""Windows whose runs are kept for others that differ by name alone."""

MOST_RUNS = 1 << 12
"""A window of more runs than that is read instead."""


_Chunk = tuple[int, int]
"""A chunk by the number of its source and its own."""


class _Half(NamedTuple):
    """One side of the runs of a window: the chunks that hold it; and for each run the number of its chunk
    among those, the byte of the chunk's elements at which it begins, and the bytes from row to row."""

    chunks: Sequence[_Chunk]
    numbers: Sequence[int]
    starts: Sequence[int]
    steps: Sequence[int]


class _Beside(NamedTuple):
    """The runs of a window, for all tensors that differ by name alone."""

    left: _Half
    right: _Half
    rows: Sequence[int]
    row_bytes: Sequence[int]


@dataclass
class SideBySide:
    """Two checkpoints whose files are compared with each other."""

    a: Checkpoint
    b: Checkpoint
    _kept: dict[tuple[Template, Template, Box, int], _Beside | None] = field(default_factory=dict)

    def not_equal(self, windows: Sequence[tuple[Pair, Box]]) -> list[int]:
        """The numbers of the windows that are not known to be equal: they are to be read.

        What is wrong with a checkpoint is left to reading, which meets it again and says what it is; a disk
        that fails may not do so twice.
        """
        if has_kernel():
            try:
                return self._compared(windows)
            except StoreError:
                raise
            except IntarsiaError:
                pass
        return [*range(len(windows))]

    def _compared(self, windows: Sequence[tuple[Pair, Box]]) -> list[int]:
        runs, fronts = Runs(), _Fronts()
        found: list[int] = []
        ends: list[tuple[int, int]] = []
        for number, (pair, box) in enumerate(windows):
            if self._add(pair, box, runs, fronts):
                ends.append((number, len(runs)))
            else:
                found.append(number)
        equal = equal_runs(self.a.source.folder, self.b.source.folder, runs)
        return sorted([*found, *(number for number, end in ends if end > equal)])

    def _add(self, pair: Pair, box: Box, runs: Runs, fronts: _Fronts) -> bool:
        """Add the runs of a window, and those of what its chunks have to begin with; whether it consists of runs."""
        dtype = pair.a.dtype
        if dtype is not pair.b.dtype and dtype != pair.b.dtype:
            return False
        if not box.size:
            return True
        a, b = self.a.prover.tensor(pair.a.name), self.b.prover.tensor(pair.b.name)
        if not (_is_plain(a, dtype) and _is_plain(b, dtype)):
            return False
        beside = self._beside(a, b, box, dtype.itemsize)
        if beside is None:
            return False
        left, right = _begins(self.a, a, beside.left), _begins(self.b, b, beside.right)
        if left is None or right is None:
            return False
        here, there = runs.left, runs.right
        ours, theirs = ([x.names[f] for f in y.files] for x, y in ((here, left), (there, right)))
        fronts.add(runs, left, ours, here, there)
        fronts.add(runs, right, theirs, there, here)
        _place(beside.left, left, ours, here)
        _place(beside.right, right, theirs, there)
        runs.rows += beside.rows
        runs.row_bytes += beside.row_bytes
        return True

    def _beside(self, a: Proven, b: Proven, box: Box, itemsize: int) -> _Beside | None:
        key = a.template, b.template, box, itemsize
        if key in self._kept:
            return self._kept[key]
        left, right = (p.template.recipe(p.target.layout, box, p.sources) for p in (a, b))
        found = _side_by_side(left, right, box.size, itemsize)
        if len(self._kept) < MOST_KEPT:
            self._kept[key] = found
        return found


class _Fronts:
    """What chunks have to begin with, in memory."""

    def __init__(self) -> None:
        self._addresses = Addresses()

    def add(
        self, runs: Runs, begins: Begins, files: Sequence[int], here: Places, there: Places
    ) -> None:
        """Add a run for each chunk on one side that has to begin with something: it is in memory on the other."""
        fronts = begins.fronts
        if not fronts:
            return
        sizes = [len(front) for _, _, front in fronts]
        here.files += [files[number] for number, _, _ in fronts]
        here.at += [at for _, at, _ in fronts]
        there.files += [NO_FILE] * len(fronts)
        there.at += [self._addresses[front] for _, _, front in fronts]
        here.steps += sizes
        there.steps += sizes
        runs.rows += [1] * len(fronts)
        runs.row_bytes += sizes


def _is_plain(proven: Proven, dtype: DType) -> bool:
    """Whether what is stored of a tensor is the bits of its elements."""
    for stored in proven.sources:
        if stored.value is not PLAIN or (stored.dtype is not dtype and stored.dtype != dtype):
            return False
    return True


def _begins(x: Checkpoint, proven: Proven, half: _Half) -> Begins | None:
    """Where the elements of chunks begin; None where they are not in row-major order."""
    sources = proven.sources
    if len(sources) == 1:
        chunks = sources[0].chunks
        return x.source.begins(sources[0], [chunks[n] for _, n in half.chunks])
    files, starts, fronts = list[str](), list[int](), list[tuple[int, int, bytes]]()
    for number, (k, n) in enumerate(half.chunks):
        begins = x.source.begins(sources[k], [sources[k].chunks[n]])
        if begins is None:
            return None
        files += begins.files
        starts += begins.starts
        fronts += [(number, at, front) for _, at, front in begins.fronts]
    return Begins(files, starts, fronts)


def _place(half: _Half, begins: Begins, files: Sequence[int], places: Places) -> None:
    """Add where one side of the runs of a window lies."""
    numbers, starts = half.numbers, begins.starts
    places.files += [files[n] for n in numbers]
    places.at += [starts[n] + start for n, start in zip(numbers, half.starts, strict=True)]
    places.steps += half.steps


def _side_by_side(left: Recipe, right: Recipe, size: int, itemsize: int) -> _Beside | None:
    """The runs of a window of so many elements; None where it does not consist of few of them."""
    met = list(_met(left, right))
    runs = [(a, b, run) for a, b, piece in met for run in _runs_of(piece, itemsize)]
    if len(runs) > MOST_RUNS or sum([r.rows * r.row_bytes for *_, r in runs]) != size * itemsize:
        return None
    ours, theirs = (
        list(dict.fromkeys(each)) for each in ([a for a, *_ in met], [b for _, b, _ in met])
    )
    return _Beside(
        _Half(
            ours,
            [ours.index(a) for a, *_ in runs],
            [r.at for *_, r in runs],
            [r.at_step for *_, r in runs],
        ),
        _Half(
            theirs,
            [theirs.index(b) for _, b, _ in runs],
            [r.to for *_, r in runs],
            [r.to_step for *_, r in runs],
        ),
        [r.rows for *_, r in runs],
        [r.row_bytes for *_, r in runs],
    )


class _Run(NamedTuple):
    """Rows that are consecutive bytes on both sides, from `at` and `to` on."""

    at: int
    to: int
    at_step: int
    to_step: int
    rows: int
    row_bytes: int


def _runs_of(piece: Piece, itemsize: int) -> Iterator[_Run]:
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
        yield _Run(at * itemsize, to * itemsize, *steps, rows.n, cols.n * itemsize)


def _met(left: Recipe, right: Recipe) -> Iterator[tuple[_Chunk, _Chunk, Piece]]:
    """Where copies of both sides fill the same elements of a window: from a chunk of one to a chunk of the other."""
    ours = sorted(((k, n, p.flip()) for k, n, p in left), key=lambda copy: copy[2].at)
    theirs = sorted(((k, n, p.flip()) for k, n, p in right), key=lambda copy: copy[2].at)
    starts = [p.at for *_, p in theirs]
    near = Ranges(starts, [p.at + p.span + 1 for *_, p in theirs])
    for k, n, p in ours:
        for i, j, q in theirs[near.near(p.at, p.at + p.span + 1)]:
            for piece in meet(p, q):
                yield (k, n), (i, j), piece.canonical()
