"""Sums of runs that lie near each other in a file, all of them in one call where the store can sum."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.checkpoint import Checkpoint
from intarsia.kernel.summing import FileRuns
from intarsia.planning.proof import Proven
from intarsia.run.sums.hashing import Sum, sum_read
from intarsia.run.sums.runs import Run

Sums = dict[str, Sum]

Lying = tuple[int, Run, str, Proven]
"""The byte of a file where a run begins, the run, the tensor that it is of, and the proof to read it."""


def sum_runs(checkpoint: Checkpoint, file: str, lying: Sequence[Lying], stretch_bytes: int) -> Sums:
    """The sums of runs of tensors; where the store does not sum, each is read a stretch at a time."""
    (start, *_), (last, run, *_) = lying[0], lying[-1]
    checkpoint.prefetch(file, start, last + run.length_bytes - start)
    places, runs, names, proofs = zip(*lying, strict=True)
    asked = FileRuns(places, [r.length_bytes for r in runs], [r.start_bytes for r in runs])
    sums = checkpoint.sums(proofs, file, asked)
    if sums is None:
        totals = [_sum_read(checkpoint, file, each, stretch_bytes) for each in lying]
    else:
        totals = [r.sum(*each) for r, *each in zip(runs, sums.pages, sums.crcs, strict=True)]
    found: Sums = {}
    for name, total in zip(names, totals, strict=True):
        found[name] = found[name] + total if name in found else total
    return found


def _sum_read(checkpoint: Checkpoint, file: str, lying: Lying, stretch_bytes: int) -> Sum:
    at, run, _, proven = lying
    read = checkpoint.stream(proven, file, at, run.length_bytes)
    return sum_read(read, run.length_bytes, run.start_bytes, run.whole_bytes, stretch_bytes)
