"""Sums of runs that lie near each other in a file: few calls read them, and each is summed where it was read to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from intarsia.checkpoint import Checkpoint
from intarsia.kernel.summing import Runs
from intarsia.planning.proof import Proven
from intarsia.run.room import Room
from intarsia.run.sharing import in_steps
from intarsia.run.sums.checksum import remainder
from intarsia.run.sums.hashing import Sum
from intarsia.run.sums.neighbours import Neighbours, Run

Sums = dict[str, Sum]

Lying = tuple[int, Run, str, Proven]
"""The byte of a file where a run begins, the run, the tensor that it is of, and the proof to read it."""

_room = Room()


def sum_runs(checkpoint: Checkpoint, file: str, lying: Sequence[Lying], stretch_bytes: int) -> Sums:
    """The sums of runs of tensors, none longer than a stretch, which lie in a file in this order."""
    found = sum_in_file(checkpoint, file, lying)
    return _sum_read(checkpoint, file, lying, stretch_bytes) if found is None else found


def sum_in_file(checkpoint: Checkpoint, file: str, lying: Sequence[Lying]) -> Sums | None:
    """The sums of runs of any length, a block of each read at a time; None where their bytes are to be read first."""
    (start, *_), (last, run, *_) = lying[0], lying[-1]
    checkpoint.prefetch(file, start, last + run.length_bytes - start)
    runs = [run for _, run, _, _ in lying]
    places, starts = [at for at, *_ in lying], [run.start_bytes for run in runs]
    asked = Runs(places, [run.length_bytes for run in runs], starts)
    sums = checkpoint.sums([proven for *_, proven in lying], file, asked)
    if sums is None:
        return None
    found: Sums = {}
    for (_, run, name, _), pages, crc in zip(lying, sums.pages, sums.crcs, strict=True):
        total = run.sum(pages, crc)
        found[name] = found[name] + total if name in found else total
    return found


def _sum_read(
    checkpoint: Checkpoint, file: str, lying: Sequence[Lying], stretch_bytes: int
) -> Sums:
    found: Sums = {}
    for some in in_steps(lying, stretch_bytes, lambda each: each[1].length_bytes):
        together = Neighbours([run for _, run, _, _ in some])
        memory = _room.take(together.nbytes)
        views = together.views(memory)
        ranges = [(each[0], view.data) for each, view in zip(some, views, strict=True)]
        checkpoint.read_each([proven for _, _, _, proven in some], file, ranges)
        sums = together.sums(memory, [remainder(view) for view in views])
        for (_, _, name, _), total in zip(some, sums, strict=True):
            found[name] = found[name] + total if name in found else total
    return found


def lying_whole(
    start_bytes: int, whole_bytes: int, stretch_bytes: int, proven: Proven
) -> Iterator[Lying]:
    """A whole tensor that lies in a file from a byte on, in runs of at most a stretch."""
    for run in _runs(whole_bytes, stretch_bytes):
        yield start_bytes + run.start_bytes, run, proven.target.name, proven


@lru_cache(maxsize=1 << 10)
def _runs(whole_bytes: int, stretch_bytes: int) -> tuple[Run, ...]:
    """A whole tensor cut into runs of at most a stretch, the same objects for all of its length."""
    starts = range(0, whole_bytes, stretch_bytes)
    return tuple([Run(at, min(stretch_bytes, whole_bytes - at), whole_bytes) for at in starts])
