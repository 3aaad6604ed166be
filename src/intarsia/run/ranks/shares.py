"""Which steps of a job each rank carries out: as many bytes as the others, and files of its own as far as possible."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.format.base import Arrangement
from intarsia.run.execute import Step, nbytes_of

MANY_FILES = 64
"""Among so many files ranks seldom meet, whoever writes which."""


def share_of(steps: Sequence[Step], arrangement: Arrangement, rank: int, size: int) -> list[Step]:
    """The steps of one rank: the kernel lets one process at a time write a file, so those that write
    the same file go to the same rank or to its neighbours."""
    if size == 1:
        return list(steps)
    if len(arrangement.files) < MANY_FILES:
        order = {file: number for number, file in enumerate(arrangement.files)}
        steps = sorted(steps, key=lambda step: order.get(_first_file(step, arrangement), 0))
    sizes = [sum(map(nbytes_of, step)) for step in steps]
    total, done = max(1, sum(sizes)), 0
    mine = []
    for step, nbytes in zip(steps, sizes, strict=True):
        middle = done + nbytes / 2
        if min(int(middle * size / total), size - 1) == rank:
            mine.append(step)
        done += nbytes
    return mine


def _first_file(step: Step, arrangement: Arrangement) -> str:
    """The first file that a step writes; none where it is empty."""
    proven, window = step[0][0]
    slots = arrangement.slots[proven.target.name]
    return next((slot.file for slot in slots if slot.box.meet(window) is not None), "")
