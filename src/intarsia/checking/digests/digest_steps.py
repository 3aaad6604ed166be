"""The work of summing a checkpoint, cut into steps that threads and ranks take in any order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter

import numpy as np

from intarsia.checking.digests.digest_runs import Lying, Sums, sum_runs
from intarsia.checkpoint import Checkpoint
from intarsia.frozen import frozen
from intarsia.layout import Layout
from intarsia.mesh import Box
from intarsia.planning.copy import layout_of_box
from intarsia.planning.manifest import Chunk, Logical, Stored
from intarsia.planning.proof import Proven
from intarsia.planning.window import flat_start, slabs_of, windows
from intarsia.run.budget import Budget
from intarsia.run.room import Bytes
from intarsia.run.sharing import in_steps
from intarsia.run.sums.hashing import LONG_BYTES, Reader, merged, sum_layout, sum_run
from intarsia.run.sums.neighbours import Run

VIEWED = 2
"""How many windows one step sums, at most."""

Whole = tuple[int, int, Proven]
"""Where in its file the only chunk of a tensor begins, the bytes of the tensor, and its proof."""


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
        flat = layout_of_box(self.stored.layout, self.chunk.box).reshape(-1)
        layout = flat if self.hi - self.lo == flat.size else flat.narrow(0, self.lo, self.hi)
        return Layout(layout.shape, tuple(p for p in layout.pieces if p.tensor in self.names))

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
class Together:
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
        return merged(found)


@frozen
class Wholes:
    """Tensors that lie near each other in one file, each in one chunk as it is."""

    tensors: Sequence[Whole]
    nbytes: int

    @property
    def proven(self) -> Proven:
        return self.tensors[0][2]

    @property
    def start_bytes(self) -> int:
        return self.tensors[0][0]

    def sums(
        self, checkpoint: Checkpoint, logical: Mapping[str, Logical], stretch_bytes: int
    ) -> Sums:
        found: list[Sums] = []
        runs: list[Lying] = []
        for _, nbytes, proven in self.tensors:
            (stored,) = proven.sources
            start = checkpoint.start_of(stored, stored.chunks[0])
            if start is not None:
                runs.append((start, _whole(nbytes), proven.target.name, proven))
            else:
                found.append(_in_place(proven).sums(checkpoint, logical, stretch_bytes))
        if runs:
            file = runs[0][-1].sources[0].chunks[0].file
            found.append(sum_runs(checkpoint, file, runs, stretch_bytes))
        return merged(found)


@lru_cache(maxsize=1 << 10)
def _whole(nbytes: int) -> Run:
    """All of a tensor, the same object for all of its length."""
    return Run(0, nbytes, nbytes)


def _in_place(proven: Proven) -> InPlace:
    (stored,) = proven.sources
    return InPlace(
        proven, stored, stored.chunks[0], 0, stored.layout.size, frozenset([proven.target.name])
    )


@frozen
class Read:
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


Step = InPlace | Together | Wholes | Read


def steps_over(
    checkpoint: Checkpoint,
    proofs: Mapping[str, Proven],
    wanted: Mapping[str, Logical],
    budget: Budget,
) -> list[Step]:
    """The work on a checkpoint, in the order of its bytes, so that a disk reads on and on."""
    steps: list[Step] = []
    small: dict[str, list[InPlace]] = {}
    wholes, rest = _wholes(proofs, wanted, budget.window_bytes)
    for of_file in wholes.values():
        of_file.sort(key=itemgetter(0))
        for near in in_steps(of_file, budget.window_bytes, itemgetter(1)):
            steps.append(Wholes(near, sum([nbytes for _, nbytes, _ in near])))
    for step in _steps(checkpoint, proofs, rest, budget):
        if isinstance(step, InPlace) and 2 * step.nbytes <= budget.stretch_bytes:
            small.setdefault(step.chunk.file, []).append(step)
        else:
            steps.append(step)
    for parts in small.values():
        parts.sort(key=lambda step: step.start_bytes)
        for some in in_steps(parts, budget.stretch_bytes, lambda step: step.nbytes):
            steps.append(Together(some) if len(some) > 1 else some[0])
    return sorted(steps, key=lambda step: step.start_bytes)


def hash_of(steps: Iterable[Step]) -> str:
    """What tells one list of steps from another, by the first tensor and the bytes of each."""
    found = hashlib.blake2b(digest_size=16)
    for step in steps:
        found.update(f"{step.proven.target.name}\0{step.start_bytes}\0{step.nbytes}\0".encode())
    return found.hexdigest()


def _wholes(
    proofs: Mapping[str, Proven], wanted: Mapping[str, Logical], most_bytes: int
) -> tuple[dict[str, list[Whole]], dict[str, Logical]]:
    """By their files, tensors of at most so many bytes that one chunk holds as they are; and the others."""
    found: dict[str, list[Whole]] = {}
    rest: dict[str, Logical] = {}
    for name, x in wanted.items():
        proven = proofs[name]
        if proven.is_one_chunk:
            (stored,) = proven.sources
            nbytes = stored.nbytes
            if stored.value.is_plain and stored.dtype == x.dtype and nbytes <= most_bytes:
                chunk = stored.chunks[0]
                found.setdefault(chunk.file, []).append((chunk.start_bytes, nbytes, proven))
                continue
        rest[name] = x
    return found, rest


def _steps(
    checkpoint: Checkpoint,
    proofs: Mapping[str, Proven],
    wanted: Mapping[str, Logical],
    budget: Budget,
) -> Iterator[InPlace | Read]:
    """Chunks as they lie in their files where they can be summed so, windows of the other tensors."""
    in_place = {name for name, x in wanted.items() if x.size and _is_plain(proofs[name], x)}
    # In the order of the tensors, not of the set: the ranks of a job each take every nth of the steps.
    plain = [proofs[name] for name in wanted if name in in_place]
    sources = {id(stored): stored for proven in plain for stored in proven.sources}
    step_bytes = VIEWED * budget.window_bytes
    for stored in sources.values():
        names = frozenset(in_place.intersection(stored.layout.tensors))
        step = max(1, step_bytes // stored.dtype.itemsize)
        proven = checkpoint.prover.stored(stored)
        for chunk in stored.chunks:
            for lo in range(0, chunk.box.size, step):
                hi = min(lo + step, chunk.box.size)
                yield InPlace(proven, stored, chunk, lo, hi, names)
    for x in wanted.values():
        if x.size and x.name not in in_place:
            chunks = [chunk for stored in proofs[x.name].sources for chunk in stored.chunks]
            start = min((chunk.start_bytes for chunk in chunks), default=0)
            held = max((chunk.length_bytes for chunk in chunks), default=0)
            for box in windows(x.shape, x.dtype.itemsize, budget.window_bytes):
                done = flat_start(box, Box.whole(x.shape)) / x.size
                yield Read(proofs[x.name], x, box, start + int(done * held))


def _is_plain(proven: Proven, x: Logical) -> bool:
    """Whether a tensor's elements are stored as they are, in long runs."""
    return all(
        stored.value.is_plain
        and stored.dtype == x.dtype
        and all(_has_long_runs(stored, chunk, x.name) for chunk in stored.chunks)
        for stored in proven.sources
    )


def _has_long_runs(stored: Stored, chunk: Chunk, name: str) -> bool:
    """Whether a chunk holds a tensor in runs that are worth a sum each; to put short ones in order
    first takes less time."""
    for piece in layout_of_box(stored.layout, chunk.box).pieces:
        if piece.tensor == name and not piece.run:
            last = piece.canonical().loops[-1]
            if not last.at == last.to == 1 or last.n * stored.dtype.itemsize < LONG_BYTES:
                return False
    return True
