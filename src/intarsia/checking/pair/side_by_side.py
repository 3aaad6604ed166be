"""Windows of pairs compared in the files of both sides, where those hold the same elements as runs of bytes.

A block of each side stays in a core's cache while it is compared.  What runs there are is worked out once for
all tensors that differ by name alone, and where they lie by arithmetic on columns of many windows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.pair.pairs import Pair
from intarsia.checking.pair.runs_beside import Beside, Half, runs_beside
from intarsia.checkpoint import Checkpoint
from intarsia.dtypes import DType
from intarsia.errors import IntarsiaError, StoreError
from intarsia.kernel.comparing import NO_FILE, Numbers
from intarsia.kernel.library import has_kernel
from intarsia.mesh import Box
from intarsia.planning.proof import AlikeTensors, Proven
from intarsia.planning.proof.template import Template
from intarsia.store.reading.comparing import Addresses, FileNumbers, Side, equal_runs
from intarsia.value import PLAIN

MOST_KEPT = 1 << 14
"""Windows whose runs are kept for others that differ by name alone."""

Window = tuple[Pair, Box]


class _Alike(NamedTuple):
    """Windows that differ by name alone, by their numbers: the proofs of their tensors, and which of those they are."""

    a: AlikeTensors
    b: AlikeTensors
    windows: list[int]
    left: list[int]
    right: list[int]


class _Block(NamedTuple):
    """Windows by their numbers, and columns of their runs, of which each has as many."""

    windows: list[int]
    columns: Numbers


class _Columns(NamedTuple):
    """The runs of windows in columns: those of window k end before `ends[k]`.

    Windows that are not `in_files` have none, and are to be read.  `fronts` is what runs in memory are of.
    """

    in_files: NDArray[np.bool_]
    ends: Numbers
    left: Side
    right: Side
    rows: Numbers
    row_bytes: Numbers
    fronts: Addresses


class _Lying(NamedTuple):
    """Where chunks lie on one side, a row for each window: their files by number, their first bytes and those of
    their elements; and for all rows what the chunks begin with."""

    files: Numbers
    starts: Numbers
    elements: Numbers
    front: Sequence[bytes]

    @property
    def fronts(self) -> int:
        """How many chunks of a window have to begin with something."""
        return len(self.front)


class SideBySide:
    """Two checkpoints whose files are compared with each other."""

    def __init__(self, a: Checkpoint, b: Checkpoint) -> None:
        self.a, self.b = a, b
        self._kept: dict[tuple[Template, Template, Box, int], Beside | None] = {}

    def columns(self, windows: Sequence[Window]) -> _Columns:
        """The runs of windows, and those of what their chunks have to begin with."""
        names, fronts, blocks = (FileNumbers(), FileNumbers()), Addresses(), list[_Block]()
        for alike in self._alike(windows):
            try:
                blocks += self._blocks(alike, *windows[alike.windows[0]], names, fronts)
            except StoreError:
                raise
            except IntarsiaError:
                # Reading meets it again and says what it is; a disk that fails may not do so twice.
                continue
        in_files, counts = np.zeros(len(windows), np.bool_), np.zeros(len(windows), np.int64)
        for numbers, held in blocks:
            in_files[numbers], counts[numbers] = True, held.shape[2]
        ends = counts.cumsum()
        starts = ends - counts
        columns = np.empty((8, int(counts.sum())), np.int64)
        for numbers, held in blocks:
            columns[:, starts[numbers][:, None] + np.arange(held.shape[2])] = held
        left, right = Side([*names[0]], *columns[:3]), Side([*names[1]], *columns[3:6])
        return _Columns(in_files, ends, left, right, columns[6], columns[7], fronts)

    def _alike(self, windows: Sequence[Window]) -> Iterable[_Alike]:
        """Windows in groups that differ by name alone."""
        count = len(windows)
        ours = _each(self.a, self.a.prover.alike([pair.a.name for pair, _ in windows]), count)
        theirs = _each(self.b, self.b.prover.alike([pair.b.name for pair, _ in windows]), count)
        found: dict[Hashable, _Alike] = {}
        for number, (pair, box) in enumerate(windows):
            a, left, ends = ours[number]
            b, right, others = theirs[number]
            key = id(a), id(b), ends, others, id(pair.a.dtype), id(pair.b.dtype), id(box)
            if (alike := found.get(key)) is None:
                alike = found[key] = _Alike(a, b, [], [], [])
            alike.windows.append(number)
            alike.left.append(left)
            alike.right.append(right)
        return found.values()

    def _blocks(
        self,
        alike: _Alike,
        pair: Pair,
        box: Box,
        names: tuple[FileNumbers, FileNumbers],
        fronts: Addresses,
    ) -> Iterator[_Block]:
        """The runs of windows that differ by name alone; none where they do not consist of runs."""
        a, b, dtype, count = alike.a.first, alike.b.first, pair.a.dtype, len(alike.windows)
        if dtype != pair.b.dtype:
            return
        if not box.size:
            yield _Block(alike.windows, np.empty((8, count, 0), np.int64))
            return
        if not (_is_plain(a, dtype) and _is_plain(b, dtype)):
            return
        beside = self._beside(a, b, box, dtype.itemsize)
        if beside is None:
            return
        left = _lying(self.a, alike.a, alike.left, beside.left, names[0])
        right = _lying(self.b, alike.b, alike.right, beside.right, names[1])
        if left is None or right is None:
            return
        columns = np.empty((8, count, left.fronts + right.fronts + len(beside.rows)), np.int64)
        _put_fronts(columns[:, :, : left.fronts], left, fronts, (0, 3))
        _put_fronts(columns[:, :, left.fronts : -len(beside.rows)], right, fronts, (3, 0))
        runs = columns[:, :, -len(beside.rows) :]
        for first, half, lying in ((0, beside.left, left), (3, beside.right, right)):
            runs[first] = lying.files[:, half.numbers]
            runs[first + 1] = lying.elements[:, half.numbers] + half.starts
            runs[first + 2] = half.steps
        runs[6], runs[7] = beside.rows, beside.row_bytes
        yield _Block(alike.windows, columns)

    def _beside(self, a: Proven, b: Proven, box: Box, itemsize: int) -> Beside | None:
        key = a.template, b.template, box, itemsize
        if key in self._kept:
            return self._kept[key]
        left, right = (p.template.recipe(p.target.layout, box, p.sources) for p in (a, b))
        found = runs_beside(left, right, box.size, itemsize)
        if len(self._kept) < MOST_KEPT:
            self._kept[key] = found
        return found


class InFiles:
    """Windows of several steps: the first thread that comes to one of those puts the runs of all together."""

    def __init__(self, sides: SideBySide, windows: Sequence[Window], steps: int = 1) -> None:
        self._sides = sides
        self._windows = windows
        self._steps = steps
        self._lock = Lock()
        self._columns: _Columns | None = None

    def not_equal(self, start: int, stop: int) -> list[int]:
        """The numbers of the windows of a step that are not known to be equal: they are to be read."""
        if not has_kernel():
            return [*range(start, stop)]
        with self._lock:
            held = self._columns or self._sides.columns(self._windows)
            self._steps -= 1
            # What nobody will ask for any more is not held.
            self._columns = held if self._steps else None
        first = int(held.ends[start - 1]) if start else 0
        equal = first + self._equal(held, first, int(held.ends[stop - 1]))
        known = held.in_files[start:stop] & (held.ends[start:stop] <= equal)
        return (start + np.flatnonzero(~known)).tolist()

    def _equal(self, held: _Columns, first: int, last: int) -> int:
        """How many runs, from the first on, are known to be equal."""
        if first == last:
            return 0
        folders = self._sides.a.source.folder, self._sides.b.source.folder
        sides = held.left.part(first, last), held.right.part(first, last)
        return equal_runs(*folders, *sides, held.rows[first:last], held.row_bytes[first:last])


def _each(
    x: Checkpoint, groups: Iterable[AlikeTensors], count: int
) -> list[tuple[AlikeTensors, int, Hashable]]:
    """For each of so many tensors those alike, which of them it is, and what decides where its elements are."""
    found: list[Any] = [None] * count
    plain, kind = x.source.is_plain, x.source.format.front_kind
    for group in groups:
        for member, number in enumerate(group.numbers):
            alike: Hashable = None
            if not plain:
                sources = group.sources(member)
                lengths = [chunk.length_bytes for s in sources for chunk in s.chunks]
                alike = *map(kind, sources), *lengths
            found[number] = group, member, alike
    return found


def _lying(
    x: Checkpoint, alike: AlikeTensors, members: Sequence[int], half: Half, names: FileNumbers
) -> _Lying | None:
    """Where the chunks of windows lie; None where their elements are in another order."""
    sources = alike.sources(members[0])
    fronts = [x.source.front_of(sources[k], sources[k].chunks[n]) for k, n in half.chunks]
    known = [front for front in fronts if front is not None]
    if len(known) != len(fronts):
        return None
    chunks, shape = alike.chunks(members, half.chunks), (len(members), len(fronts))
    files = np.array([names[chunk.file] for chunk in chunks], np.int64).reshape(shape)
    starts = np.array([chunk.start_bytes for chunk in chunks], np.int64).reshape(shape)
    front = [] if x.source.is_plain else [front for _, front in known]
    return _Lying(
        files, starts, starts + np.array([within for within, _ in known], np.int64), front
    )


def _put_fronts(columns: Numbers, lying: _Lying, held: Addresses, at: tuple[int, int]) -> None:
    """Fill in the runs of what chunks begin with: in their files on one side, in memory on the other."""
    if not lying.front:
        return
    here, there = at
    columns[here], columns[here + 1] = lying.files, lying.starts
    columns[there], columns[there + 1] = NO_FILE, [held[front] for front in lying.front]
    columns[here + 2] = columns[there + 2] = columns[7] = [len(front) for front in lying.front]
    columns[6] = 1


def _is_plain(proven: Proven, dtype: DType) -> bool:
    """Whether what is stored of a tensor is the bits of its elements."""
    return all(x.value is PLAIN and x.dtype == dtype for x in proven.sources)
