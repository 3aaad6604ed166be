"""Tensors that are cut alike into chunks, summed where those lie: band after band of rows, each held by one chunk or by several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from intarsia.checking.chunk_places import Lying, lying_in, put_fronts
from intarsia.checking.digests.step_kinds import Sums
from intarsia.checkpoint import Checkpoint
from intarsia.errors import CoverageError
from intarsia.frozen import frozen
from intarsia.kernel.moving import BLOCK_BYTES, SIDE, STRIP, Sides, Strips
from intarsia.mesh import Box, Shape
from intarsia.planning.manifest import Logical
from intarsia.planning.proof import AlikeTensors, Proofs, Proven
from intarsia.run.sums.hashing import Sum, sum_run
from intarsia.store.moving import sum_strips
from intarsia.store.reading.comparing import Addresses, FileNumbers, RunSide, equal_runs

MOST_CHUNKS = 512
"""A tensor of more is summed chunk by chunk."""


class Bands(NamedTuple):
    """All tensors of one kind as strips; `file` of a side is the number of a chunk, from whose first element `at` counts."""

    strips: Strips
    sides: Sides


def bands_of(shape: Shape, boxes: Sequence[Box], itemsize: int) -> Bands | None:
    """The bands of rows of a tensor that boxes tile; None where a box cuts more than rows and columns, or rows are long."""
    rows, row_bytes = prod(shape[:1]), prod(shape[1:]) * itemsize
    held: list[tuple[int, int, int, int, int]] = []
    for number, box in enumerate(boxes):
        if box.shape[2:] != shape[2:]:
            return None
        first, count = (box.offsets or (0,))[0], prod(box.shape[:1])
        width = prod(box.shape[1:]) * itemsize
        offset = box.offsets[1] * prod(shape[2:]) * itemsize if len(shape) > 1 else 0
        held.append((first, first + count, offset, width, number))
    if len(boxes) > MOST_CHUNKS or not prod(shape):
        return None
    strips, sides = list[tuple[int, ...]](), list[tuple[int, ...]]()
    for lo, hi in pairwise(sorted({edge for first, end, *_ in held for edge in (first, end)})):
        here = [x for x in held if x[0] <= lo < x[1] and x[3]]
        start, length, after = lo * row_bytes, (hi - lo) * row_bytes, (rows - hi) * row_bytes
        if len(here) == 1:
            ((first, _, _, _, number),) = here
            strips.append((length, 1, start, after, 0, 1, 0))
            sides.append((number, (lo - first) * row_bytes, 0, 1, 0))
            continue
        if row_bytes > BLOCK_BYTES:
            return None
        strips.append((hi - lo, row_bytes, start, after, 0, len(here), 0))
        sides += [(number, (lo - x) * width, at, width, 0) for x, _, at, width, number in here]
    return Bands(np.array(strips, STRIP), np.array(sides, SIDE))


@frozen
class InBands:
    """Tensors that differ by name alone and lie near each other, each of them in the same bands of rows."""

    proofs: Proofs
    alike: AlikeTensors
    members: Sequence[int]
    names: Sequence[str]
    bands: Bands
    nbytes: int
    start_bytes: int

    @property
    def proven(self) -> Proven:
        return self.proofs[self.names[0]]

    def sums(
        self, checkpoint: Checkpoint, logical: Mapping[str, Logical], stretch_bytes: int
    ) -> Sums:
        length = self.nbytes // len(self.names)
        if (found := self._summed(checkpoint)) is not None:
            each = zip(self.names, *found, strict=True)
            return {name: Sum(pages, crc, length) for name, pages, crc in each}
        sums: Sums = {}
        for name in self.names:
            held = checkpoint.read_box(self.proofs[name], Box.whole(logical[name].shape))
            sums[name] = sum_run(held, 0, length, stretch_bytes)
        return sums

    def _summed(self, checkpoint: Checkpoint) -> tuple[list[int], list[int]] | None:
        """Both sums of each tensor; None where one does not begin as its like, or cannot be summed where it lies."""
        first, files, count = self.alike.first, FileNumbers(), len(self.members)
        if first.src is not checkpoint.manifest:
            raise CoverageError(f"`{first.target.name}` is proven of {first.src.path}")
        wanted = [(0, n) for n in range(len(first.sources[0].chunks))]
        lying = lying_in(checkpoint, self.alike, np.array(self.members), wanted, files)
        if lying is None:
            return None
        used, numbers = np.unique(lying.files, return_inverse=True)
        lying, named = lying._replace(files=numbers.reshape(lying.files.shape)), [*files]
        names = [named[number] for number in used.tolist()]
        if not _begin_alike(checkpoint, lying, names):
            return None
        strips, sides = (np.tile(x, (count, 1)) for x in self.bands)
        strips["sum"] += np.arange(count, dtype=np.uint64)[:, None]
        chunks = self.bands.sides["file"].astype(np.int64)
        sides["at"] += lying.elements[:, chunks].astype(np.uint64)
        sides["file"] = lying.files[:, chunks]
        folder = checkpoint.source.folder
        found = sum_strips(folder, names, strips.reshape(-1), sides.reshape(-1), count)
        return None if found is None else (found.pages.tolist(), found.crcs.tolist())


def _begin_alike(checkpoint: Checkpoint, lying: Lying, files: Sequence[str]) -> bool:
    """Whether all chunks begin with what says where their elements are."""
    if not lying.front:
        return True
    held, folder = Addresses(), checkpoint.source.folder
    columns = np.empty((8, *lying.files.shape), np.int64)
    put_fronts(columns, lying, held, (0, 3))
    columns = columns.reshape(8, -1)
    sides = RunSide(files, *columns[:3]), RunSide([], *columns[3:6])
    return equal_runs(folder, folder, *sides, *columns[6:]) == columns.shape[1]
