"""Steps of summing a checkpoint: stretches of chunks and tensors where they lie, and windows that are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from intarsia.checkpoint import Checkpoint
from intarsia.frozen import frozen
from intarsia.kernel.summing import FileRuns
from intarsia.kernel.summing import Sums as SumsOfRuns
from intarsia.layout import Layout
from intarsia.mesh import Box
from intarsia.planning.copy import layout_of_box
from intarsia.planning.manifest import Chunk, Logical, Stored
from intarsia.planning.proof import Proofs, Proven
from intarsia.planning.whole_tensor import WholeTensor
from intarsia.planning.window import flat_start, slabs_of
from intarsia.run.room import Bytes
from intarsia.run.sums.hashing import Reader, Sum, merged_sums, sum_layout, sum_read, sum_run
from intarsia.run.sums.runs import Run, whole_run

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


@frozen
class InPlace:
    """A stretch of a chunk, summed where it lies in its file, for the tensors that are asked for."""

    proven: Proven
    stored: Stored
    chunk: Chunk
    lo: int
    hi: int
    names: frozenset[str]

    @property
    def nbytes(self) -> int:
        return (self.hi - self.lo) * self.stored.dtype.itemsize

    @property
    def start_bytes(self) -> int:
        """Where in its file this begins."""
        return self.chunk.start_bytes + self.lo * self.stored.dtype.itemsize

    def sums(
        self, checkpoint: Checkpoint, logical: Mapping[str, Logical], stretch_bytes: int
    ) -> Sums:
        if (runs := self.runs(checkpoint, logical)) is not None:
            return sum_runs(checkpoint, self.chunk.file, runs, stretch_bytes)
        sizes = {name: logical[name].size for name in self.names}
        held, itemsize = self._held(checkpoint), self.stored.dtype.itemsize
        return sum_layout(self.layout, held, itemsize, sizes, stretch_bytes)

    def runs(
        self, checkpoint: Checkpoint, logical: Mapping[str, Logical]
    ) -> Sequence[Lying] | None:
        """The runs of tensors that this is, where they are in the file; None where it is more than runs."""
        pieces, start = self.layout.pieces, self._start(checkpoint)
        if start is None or not pieces or not all(piece.run for piece in pieces):
            return None
        size, found = self.stored.dtype.itemsize, list[Lying]()
        for piece in pieces:
            name, at = piece.tensor, start + piece.at * size
            run = Run(piece.to * size, piece.run * size, logical[name].nbytes)
            found.append((at, run, name, self.proven))
        return found

    @property
    def layout(self) -> Layout:
        """What this holds of the tensors that are asked for."""
        held = layout_of_box(self.stored.layout, self.chunk.box)
        if self.hi - self.lo < held.size:
            held = held.reshape(-1).narrow(0, self.lo, self.hi)
        if self.names.issuperset(held.tensors):
            return held
        return Layout(held.shape, tuple(p for p in held.pieces if p.tensor in self.names))

    def _start(self, checkpoint: Checkpoint) -> int | None:
        """The byte of the file where this begins; None where that has not its elements in row-major order."""
        start = checkpoint.start_of(self.stored, self.chunk)
        return None if start is None else start + self.lo * self.stored.dtype.itemsize

    def _held(self, checkpoint: Checkpoint) -> Bytes | Reader:
        """The elements in row-major order; where the file has another one, they are read."""
        chunk = self.chunk
        if (start := self._start(checkpoint)) is not None:
            return checkpoint.stream(self.proven, chunk.file, start, self.nbytes)
        slabs = slabs_of(chunk.box.shape, self.lo, self.hi)
        boxes = [slab.moved(chunk.box.offsets) for slab in slabs]
        return np.concatenate([checkpoint.read_box(self.proven, box) for box in boxes])


@frozen
class ReadTogether:
    """Stretches of chunks that lie near each other in one file, read by one call and summed together."""

    parts: Sequence[InPlace]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def proven(self) -> Proven:
        return self.parts[0].proven

    @property
    def start_bytes(self) -> int:
        return self.parts[0].start_bytes

    def sums(
        self, checkpoint: Checkpoint, logical: Mapping[str, Logical], stretch_bytes: int
    ) -> Sums:
        found: list[Sums] = []
        runs: list[Lying] = []
        near = ((part.stored, part.chunk) for part in self.parts)
        checkpoint.locate_near(self.parts[0].chunk.file, near)
        for part in self.parts:
            if (of_part := part.runs(checkpoint, logical)) is not None:
                runs += of_part
            else:
                found.append(part.sums(checkpoint, logical, stretch_bytes))
        if runs:
            found.append(sum_runs(checkpoint, self.parts[0].chunk.file, runs, stretch_bytes))
        return merged_sums(found)


@frozen
class RunsOfFile:
    """Tensors that lie near each other in one file, each of which is a run of it."""

    proofs: Proofs
    tensors: Sequence[WholeTensor]
    nbytes: int

    @property
    def proven(self) -> Proven:
        return self.proofs[self.tensors[0].name]

    @property
    def start_bytes(self) -> int:
        return self.tensors[0].start_bytes

    def sums(
        self, checkpoint: Checkpoint, logical: Mapping[str, Logical], stretch_bytes: int
    ) -> Sums:
        if (sums := self.sums_in_file(checkpoint)) is not None:
            return {
                x.name: Sum(pages, crc, x.length_bytes)
                for x, pages, crc in zip(self.tensors, sums.pages, sums.crcs, strict=True)
            }
        proofs = self.proofs
        runs = [(x.start_bytes, whole_run(x.nbytes), x.name, proofs[x.name]) for x in self.tensors]
        return sum_runs(checkpoint, self.tensors[0].file, runs, stretch_bytes)

    def sums_in_file(self, checkpoint: Checkpoint) -> SumsOfRuns | None:
        """Both sums of each tensor, of all of its bytes; None where these are to be read."""
        return checkpoint.sums_of_whole(self.proofs, self.tensors)


@frozen
class ReadWindow:
    """A window of a logical tensor, brought into row-major order first."""

    proven: Proven
    logical: Logical
    box: Box
    start_bytes: int
    """About where in their files its chunks begin."""

    @property
    def nbytes(self) -> int:
        return self.box.size * self.logical.dtype.itemsize

    def sums(
        self, checkpoint: Checkpoint, logical: Mapping[str, Logical], stretch_bytes: int
    ) -> Sums:
        x, itemsize = self.logical, self.logical.dtype.itemsize
        held = checkpoint.read_box(self.proven, self.box)
        start = flat_start(self.box, Box.whole(x.shape)) * itemsize
        return {x.name: sum_run(held, start, x.size * itemsize, stretch_bytes)}
