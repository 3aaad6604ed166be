"""Where the chunks of tensors that differ by name alone lie, and what they have to begin with, in columns."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from intarsia.checkpoint import Checkpoint
from intarsia.kernel.comparing import NO_FILE, Numbers
from intarsia.planning.proof import AlikeTensors
from intarsia.store.reading.comparing import Addresses, FileNumbers


class Lying(NamedTuple):
    """Where chunks lie, a row for each tensor: their files by number, their first bytes and those of
    their elements; and for all rows what the chunks begin with."""

    files: Numbers
    starts: Numbers
    elements: Numbers
    front: Sequence[bytes]

    @property
    def fronts(self) -> int:
        """How many chunks of a tensor have to begin with something."""
        return len(self.front)


def each_alike(x: Checkpoint, names: Sequence[str]) -> list[tuple[AlikeTensors, int, Hashable]]:
    """For each tensor those alike, which of them it is, and what decides where its elements are."""
    found: list[Any] = [None] * len(names)
    plain, kind = x.source.is_plain, x.source.format.front_kind
    for group in x.prover.alike(names):
        alike: Sequence[Hashable] = [None] * len(group.numbers)
        if not plain:
            each = [*map(group.sources, range(len(group.numbers)))]
            wanted = [(k, n) for k, s in enumerate(each[0]) for n in range(len(s.chunks))]
            lengths = group.places(range(len(each)), wanted).lengths
            alike = [tuple([kind(source) for source in sources]) for sources in each]
            for member in np.flatnonzero((lengths != lengths[:1]).any(axis=1)).tolist():
                alike[member] = alike[member], lengths[member].tobytes()
        for member, number in enumerate(group.numbers):
            found[number] = group, member, alike[member]
    return found


def lying_in(
    x: Checkpoint,
    alike: AlikeTensors,
    members: Numbers,
    wanted: Sequence[tuple[int, int]],
    names: FileNumbers,
) -> Lying | None:
    """Where chunks of tensors lie, by the numbers of their sources and their own; None where their elements are in another order."""
    sources = alike.sources(int(members[0]))
    fronts = [x.source.front_of(sources[k], sources[k].chunks[n]) for k, n in wanted]
    known = [front for front in fronts if front is not None]
    if len(known) != len(fronts):
        return None
    places = alike.places(members, wanted)
    files = np.array([names[file] for file in places.names], np.int64)[places.files]
    front = [] if x.source.is_plain else [front for _, front in known]
    elements = places.starts + np.array([within for within, _ in known], np.int64)
    return Lying(files, places.starts, elements, front)


def put_fronts(columns: Numbers, lying: Lying, held: Addresses, at: tuple[int, int]) -> None:
    """Fill in the runs of what chunks begin with: in their files on one side, in memory on the other."""
    if not lying.front:
        return
    here, there = at
    columns[here], columns[here + 1] = lying.files, lying.starts
    columns[there], columns[there + 1] = NO_FILE, [held[front] for front in lying.front]
    columns[here + 2] = columns[there + 2] = columns[7] = [len(front) for front in lying.front]
    columns[6] = 1
