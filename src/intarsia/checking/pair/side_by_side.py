"""Windows of pairs compared in the files of both sides, where those hold the same elements as runs of bytes.

A block of each side stays in a core's cache while it is compared.  What runs there are is worked out once for
all tensors that differ by name alone, and where they lie by arithmetic on columns of many windows.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.chunk_places import each_alike, lying_in, put_fronts
from intarsia.checking.pair.pairs import Pair
from intarsia.checking.pair.runs_beside import Beside, runs_beside
from intarsia.checkpoint import Checkpoint
from intarsia.dtypes import DType
from intarsia.format.complaint import reported_elsewhere
from intarsia.kernel.comparing import Numbers
from intarsia.kernel.library import has_kernel
from intarsia.mesh import Box
from intarsia.planning.proof import AlikeTensors, Proven
from intarsia.planning.proof.template import Template
from intarsia.store.reading.comparing import Addresses, FileNumbers, RunSide, equal_runs
from intarsia.value import PLAIN

MOST_KEPT = 1 << 14
"""Windows whose runs are kept for others that differ by name alone."""

NumberedWindow = tuple[int, Box]
"""A window of the pair of a number."""


class _KindOfPair(NamedTuple):
    """Pairs that differ by name alone: the proofs of their tensors, and one of the pairs."""

    a: AlikeTensors
    b: AlikeTensors
    first: Pair


class _Kinds(NamedTuple):
    """The kinds of pairs, the number of each pair's own, and of which of the kind's proofs it is, on both sides."""

    kinds: Sequence[_KindOfPair]
    numbers: Sequence[int]
    members: Numbers


class _WindowBlock(NamedTuple):
    """Windows by their numbers, and columns of their runs; each window has as many."""

    windows: list[int]
    columns: Numbers


class _Columns(NamedTuple):
    """The runs of windows in columns: those of window k end before `ends[k]`.

    Windows that are not `in_files` have none, and are to be read.  `fronts` is what runs in memory are of.
    """

    in_files: NDArray[np.bool_]
    ends: Numbers
    left: RunSide
    right: RunSide
    rows: Numbers
    row_bytes: Numbers
    fronts: Addresses


class SideBySide:
    """Two checkpoints whose files are compared with each other."""

    def __init__(self, a: Checkpoint, b: Checkpoint, pairs: Sequence[Pair]) -> None:
        self.a, self.b = a, b
        self._pairs = pairs
        self._lock = Lock()
        self._kept: dict[tuple[Template, Template, Box, int], Beside | None] = {}

    def columns(self, windows: Sequence[NumberedWindow]) -> _Columns:
        """The runs of windows, and those of what their chunks have to begin with."""
        names, fronts, blocks = (FileNumbers(), FileNumbers()), Addresses(), list[_WindowBlock]()
        with self._lock:
            kinds, numbers, members = self._kinds
        alike: dict[tuple[int, int], list[int]] = {}
        for window, (pair, box) in enumerate(windows):
            alike.setdefault((numbers[pair], id(box)), []).append(window)
        for (kind, _), some in alike.items():
            box, of_pairs = windows[some[0]][1], [windows[window][0] for window in some]
            held = None
            with reported_elsewhere():
                held = self._block(kinds[kind], members[:, of_pairs], box, names, fronts)
            if held is not None:
                blocks.append(_WindowBlock(some, held))
        in_files, counts = np.zeros(len(windows), np.bool_), np.zeros(len(windows), np.int64)
        for numbers, held in blocks:
            in_files[numbers], counts[numbers] = True, held.shape[2]
        ends = counts.cumsum()
        starts = ends - counts
        columns = np.empty((8, int(counts.sum())), np.int64)
        for numbers, held in blocks:
            columns[:, starts[numbers][:, None] + np.arange(held.shape[2])] = held
        left, right = RunSide([*names[0]], *columns[:3]), RunSide([*names[1]], *columns[3:6])
        return _Columns(in_files, ends, left, right, columns[6], columns[7], fronts)

    @cached_property
    def _kinds(self) -> _Kinds:
        """The pairs, in kinds that differ by name alone."""
        ours = each_alike(self.a, [pair.a.name for pair in self._pairs])
        theirs = each_alike(self.b, [pair.b.name for pair in self._pairs])
        kinds: dict[Hashable, tuple[int, _KindOfPair]] = {}
        numbers: list[int] = []
        for pair, (a, _, ends), (b, _, others) in zip(self._pairs, ours, theirs, strict=True):
            key = id(a), id(b), ends, others, id(pair.a.dtype), id(pair.b.dtype)
            if (known := kinds.get(key)) is None:
                known = kinds[key] = len(kinds), _KindOfPair(a, b, pair)
            numbers.append(known[0])
        members = np.array([[member for _, member, _ in side] for side in (ours, theirs)], np.int64)
        return _Kinds([kind for _, kind in kinds.values()], numbers, members)

    def _block(
        self,
        kind: _KindOfPair,
        members: Numbers,
        box: Box,
        names: tuple[FileNumbers, FileNumbers],
        fronts: Addresses,
    ) -> Numbers | None:
        """Columns of the runs of windows that differ by name alone; None where they do not consist of runs."""
        a, b, dtype, count = kind.a.first, kind.b.first, kind.first.a.dtype, members.shape[1]
        if dtype != kind.first.b.dtype:
            return None
        if not box.size:
            return np.empty((8, count, 0), np.int64)
        if not (_is_stored_as_bits(a, dtype) and _is_stored_as_bits(b, dtype)):
            return None
        beside = self._beside(a, b, box, dtype.itemsize)
        if beside is None:
            return None
        left = lying_in(self.a, kind.a, members[0], beside.left.chunks, names[0])
        right = lying_in(self.b, kind.b, members[1], beside.right.chunks, names[1])
        if left is None or right is None:
            return None
        columns = np.empty((8, count, left.fronts + right.fronts + len(beside.rows)), np.int64)
        put_fronts(columns[:, :, : left.fronts], left, fronts, (0, 3))
        put_fronts(columns[:, :, left.fronts : -len(beside.rows)], right, fronts, (3, 0))
        runs = columns[:, :, -len(beside.rows) :]
        for first, half, lying in ((0, beside.left, left), (3, beside.right, right)):
            runs[first] = lying.files[:, half.numbers]
            runs[first + 1] = lying.elements[:, half.numbers] + half.starts
            runs[first + 2] = half.steps
        runs[6], runs[7] = beside.rows, beside.row_bytes
        return columns

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

    def __init__(
        self, sides: SideBySide, windows: Sequence[NumberedWindow], steps: int = 1
    ) -> None:
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


def _is_stored_as_bits(proven: Proven, dtype: DType) -> bool:
    """Whether what is stored of a tensor is the bits of its elements."""
    return all(x.value is PLAIN and x.dtype == dtype for x in proven.sources)
