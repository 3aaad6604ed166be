"""Tensors that are put together from runs of files as they are, as experts are that a module holds as one tensor.

The runs of all tensors are laid one after another, in the order of their files, and cut into steps, by
arithmetic on columns.  What of a step fills one stretch of a tensor lies in one stretch of memory, too, so that it
goes to a GPU by one copy, whatever lies between it in the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import CoverageError
from intarsia.live.loading.filling.to_device import ALIGNED_BYTES
from intarsia.planning.chunks import Numbers, numbers_of_ranges
from intarsia.planning.proof import Proven


class TargetStretch(NamedTuple):
    """Bytes of a target, by its number, and where they begin in the room of their step."""

    target: int
    to: int
    length: int
    at: int


class RunToRead(NamedTuple):
    """A run of a file, which goes to a stretch of its step, by its number, from byte `within` of it on."""

    file: str
    start: int
    length: int
    stretch: int
    within: int


class RunStep(NamedTuple):
    """What one thread reads at a time: the stretches that it fills, and reads in the order of the files."""

    stretches: Sequence[TargetStretch]
    reads: Sequence[RunToRead]

    @property
    def nbytes(self) -> int:
        return sum([x.length for x in self.stretches])

    @property
    def room_bytes(self) -> int:
        """The length of memory that holds all stretches."""
        return self.stretches[-1].at + self.stretches[-1].length


def run_steps(proofs: Sequence[Proven], step_bytes: int) -> Iterator[RunStep]:
    """The steps, of at most `step_bytes` each, that fill targets which are runs of whole tensors."""
    if not proofs:
        return
    files = sorted({x.file for proven in proofs for x in proven.runs})
    runs = _cut(_runs(proofs, files), max(step_bytes // ALIGNED_BYTES, 1) * ALIGNED_BYTES)
    if runs.length.sum() != sum([proven.target.nbytes for proven in proofs]):
        raise CoverageError("what the steps of a load read is not what is to be filled")
    stretches, of_steps, stretch, within = _stretches(runs)
    steps = np.arange(int(runs.step[-1]) + 2)
    first = np.searchsorted(of_steps, steps)
    new = _begins(runs.step, runs.file, stretch) | _apart(runs.start, runs.length)
    joined = np.flatnonzero(new | _apart(within, runs.length))
    each = zip(
        [files[k] for k in runs.file[joined].tolist()],
        runs.start[joined].tolist(),
        np.add.reduceat(runs.length, joined).tolist(),
        (stretch - first[runs.step])[joined].tolist(),
        within[joined].tolist(),
        strict=True,
    )
    reads = [*map(RunToRead._make, each)]
    bounds = zip(pairwise(first), pairwise(np.searchsorted(runs.step[joined], steps)), strict=True)
    for (a, b), (c, d) in bounds:
        yield RunStep(stretches[a:b], reads[c:d])


class _Runs(NamedTuple):
    """Runs in columns, in the order of the files: `length` bytes, from byte `start` of a file to byte `to` of a target."""

    file: Numbers
    start: Numbers
    target: Numbers
    to: Numbers
    length: Numbers
    step: Numbers


def _runs(proofs: Sequence[Proven], files: Sequence[str]) -> _Runs:
    """The runs of targets, which are not cut into steps yet."""
    numbers = {file: number for number, file in enumerate(files)}
    held = [x for proven in proofs for x in proven.runs]
    number = np.array([numbers[x.file] for x in held])
    pieces = [p for proven in proofs for p in proven.target.layout.pieces]
    counts = [len(proven.runs) for proven in proofs]
    sizes = np.repeat([proven.target.dtype.itemsize for proven in proofs], counts)
    start = np.array([x.start_bytes for x in held]) + np.array([p.to for p in pieces]) * sizes
    to = np.array([p.at for p in pieces])
    # The pieces of a target fill it one after another.
    end = np.append(to[1:], 0)
    end[np.cumsum(counts) - 1] = [proven.target.layout.size for proven in proofs]
    order = np.lexsort((start, number))
    target = np.repeat(np.arange(len(proofs)), counts)
    columns = number, start, target, to * sizes, (end - to) * sizes, np.zeros_like(order)
    return _Runs(*[x[order] for x in columns])


def _cut(runs: _Runs, step_bytes: int) -> _Runs:
    """The runs, laid one after another, cut where a step ends, which is between two elements."""
    ends = np.cumsum(-(-runs.length // ALIGNED_BYTES) * ALIGNED_BYTES)
    begin = np.concatenate([[0], ends[:-1]])
    first, last = begin // step_bytes, (begin + runs.length - 1) // step_bytes
    count = last - first + 1
    k = np.repeat(np.arange(len(begin)), count)
    step = numbers_of_ranges(first, count)
    lo = np.maximum(begin[k], step * step_bytes) - begin[k]
    hi = np.minimum(begin[k] + runs.length[k], (step + 1) * step_bytes) - begin[k]
    return _Runs(runs.file[k], runs.start[k] + lo, runs.target[k], runs.to[k] + lo, hi - lo, step)


def _stretches(runs: _Runs) -> tuple[list[TargetStretch], Numbers, Numbers, Numbers]:
    """The stretches of all steps, and the step of each; and for each run its stretch, and where in it the run begins."""
    order = np.lexsort((runs.to, runs.target, runs.step))
    step, target, to, length = (x[order] for x in (runs.step, runs.target, runs.to, runs.length))
    new = _begins(step, target) | _apart(to, length)
    first = np.flatnonzero(new)
    lengths = np.add.reduceat(length, first)
    ends = np.cumsum(-(-lengths // ALIGNED_BYTES) * ALIGNED_BYTES)
    begin = np.concatenate([[0], ends[:-1]])
    of_step = step[first]
    at = begin - begin[np.searchsorted(of_step, of_step)]
    number, within = np.empty_like(order), np.empty_like(order)
    number[order] = np.cumsum(new) - 1
    within[order] = to - to[first][number[order]]
    columns = target[first], to[first], lengths, at
    made = zip(*[x.tolist() for x in columns], strict=True)
    return [*map(TargetStretch._make, made)], of_step, number, within


def _begins(*columns: Numbers) -> NDArray[np.bool_]:
    """Where a row is the first one, or one of the columns differs from the row before."""
    found = np.ones(len(columns[0]), bool)
    found[1:] = np.any([x[1:] != x[:-1] for x in columns], axis=0)
    return found


def _apart(begin: Numbers, length: Numbers) -> NDArray[np.bool_]:
    """Where a row does not begin where the row before ends."""
    found = np.ones(len(begin), bool)
    found[1:] = begin[1:] != (begin + length)[:-1]
    return found
