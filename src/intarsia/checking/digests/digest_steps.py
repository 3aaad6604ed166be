"""The work of summing a checkpoint, cut into steps that threads and ranks take in any order."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from operator import attrgetter

from intarsia.checking.chunk_places import each_alike
from intarsia.checking.digests.bands import InBands, bands_of
from intarsia.checking.digests.step_kinds import (
    InPlace,
    ReadTogether,
    ReadWindow,
    RunsOfFile,
)
from intarsia.checkpoint import Checkpoint
from intarsia.kernel.library import has_kernel
from intarsia.mesh import Box
from intarsia.planning.chunks import boxes_of, first_place
from intarsia.planning.copy import layout_of_box
from intarsia.planning.manifest import Chunk, Logical, Stored
from intarsia.planning.proof import AlikeTensors, Proofs, Proven
from intarsia.planning.whole_tensor import WholeTensor
from intarsia.planning.window import flat_start, windows
from intarsia.run.budget import Budget
from intarsia.run.sharing import in_steps
from intarsia.run.sums.hashing import LONG_BYTES

Step = InPlace | ReadTogether | RunsOfFile | InBands | ReadWindow

VIEWED = 2
"""How many windows one step sums, at most."""


def steps_over(
    checkpoint: Checkpoint, proofs: Proofs, wanted: Mapping[str, Logical], budget: Budget
) -> list[Step]:
    """The work on a checkpoint, in the order of its bytes, so that a disk reads on and on."""
    steps: list[Step] = []
    small: dict[str, list[InPlace]] = {}
    total = sum(checkpoint.manifest.files.values())
    step_bytes = budget.call_bytes(total, budget.window_bytes)
    in_files, rest = _in_files(proofs, wanted, budget.window_bytes)
    for tensors in in_files.values():
        tensors.sort(key=_START)
        for runs in in_steps(tensors, step_bytes, _LENGTH):
            steps.append(RunsOfFile(proofs, runs, sum(map(_LENGTH, runs))))
    if has_kernel():
        in_bands, rest = _in_bands(checkpoint, proofs, rest, budget.window_bytes, step_bytes)
        steps += in_bands
    for step in _steps(checkpoint, proofs, rest, budget):
        if isinstance(step, InPlace) and 2 * step.nbytes <= budget.stretch_bytes:
            small.setdefault(step.chunk.file, []).append(step)
        else:
            steps.append(step)
    for parts in small.values():
        parts.sort(key=lambda step: step.start_bytes)
        for some in in_steps(parts, budget.stretch_bytes, lambda step: step.nbytes):
            steps.append(ReadTogether(some) if len(some) > 1 else some[0])
    return sorted(steps, key=lambda step: step.start_bytes)


def hash_of_steps(steps: Iterable[Step]) -> str:
    """The hash of a list of steps, by the first tensor and the bytes of each."""
    found = hashlib.blake2b(digest_size=16)
    for step in steps:
        found.update(f"{step.proven.target.name}\0{step.start_bytes}\0{step.nbytes}\0".encode())
    return found.hexdigest()


_START, _LENGTH = attrgetter("start_bytes"), attrgetter("length_bytes")


def _in_files(
    proofs: Proofs, wanted: Mapping[str, Logical], most_bytes: int
) -> tuple[dict[str, list[WholeTensor]], dict[str, Logical]]:
    """By their files, tensors of at most so many bytes that are runs of them; and the others."""
    found: dict[str, list[WholeTensor]] = {}
    rest: dict[str, Logical] = {}
    known = proofs.whole.get
    for name in wanted:
        if (x := known(name)) is None or x.length_bytes > most_bytes:
            rest[name] = wanted[name]
        elif x.file in found:
            found[x.file].append(x)
        else:
            found[x.file] = [x]
    return found, rest


def _in_bands(
    checkpoint: Checkpoint,
    proofs: Proofs,
    wanted: Mapping[str, Logical],
    most_bytes: int,
    step_bytes: int,
) -> tuple[list[InBands], dict[str, Logical]]:
    """Tensors of at most so many bytes that lie in bands of chunks in columns, in steps; and the others."""
    names = [
        name
        for name, stored in proofs.in_columns.items()
        if (x := wanted.get(name)) is not None and stored.dtype == x.dtype
        if stored.value.is_plain and 0 < stored.nbytes <= most_bytes
    ]
    alike: dict[Hashable, tuple[AlikeTensors, list[tuple[int, int, str]]]] = {}
    for name, (group, member, ends) in zip(names, each_alike(checkpoint, names), strict=True):
        _, start = first_place(proofs.in_columns[name].chunks) or ("", 0)
        alike.setdefault((id(group), ends), (group, []))[1].append((start, member, name))
    steps: list[InBands] = []
    for group, members in alike.values():
        stored = proofs.in_columns[members[0][2]]
        bands = bands_of(stored.shape, boxes_of(stored.chunks), stored.dtype.itemsize)
        if bands is None:
            continue
        members.sort()
        count = step_bytes // stored.nbytes
        for at in range(0, len(members), count):
            starts, numbers, each = zip(*members[at : at + count], strict=True)
            nbytes = len(each) * stored.nbytes
            steps.append(InBands(proofs, group, numbers, each, bands, nbytes, starts[0]))
    done = {name for step in steps for name in step.names}
    return steps, {name: x for name, x in wanted.items() if name not in done}


def _steps(
    checkpoint: Checkpoint,
    proofs: Mapping[str, Proven],
    wanted: Mapping[str, Logical],
    budget: Budget,
) -> Iterator[InPlace | ReadWindow]:
    """Chunks as they lie in their files where they can be summed so, windows of the other tensors."""
    in_place = {name for name, x in wanted.items() if x.size and _has_plain_runs(proofs[name], x)}
    # In the order of the tensors, not of the set: the ranks of a job each take every nth of the steps.
    plain = [proofs[name] for name in wanted if name in in_place]
    sources = {id(stored): (proven, stored) for proven in plain for stored in proven.sources}
    step_bytes = VIEWED * budget.window_bytes
    for proven, stored in sources.values():
        names = frozenset(in_place.intersection(stored.layout.tensors))
        step = max(1, step_bytes // stored.dtype.itemsize)
        if not proven.is_one_chunk:
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
                yield ReadWindow(proofs[x.name], x, box, start + int(done * held))


def _has_plain_runs(proven: Proven, x: Logical) -> bool:
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
