"""Carrying out a proven plan: read, scatter, sum, write, one window of memory at a time.

Work is cut into steps that do not depend on each other: threads take them in order, and so
may the ranks of a job.  Every byte of the destination has its place before the first is
written, so the outcome does not depend on who wrote what.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

from intarsia.errors import CoverageError
from intarsia.format.base import Arrangement, Slot
from intarsia.mesh import Box
from intarsia.planning.copy import layout_of_box
from intarsia.planning.manifest import Target
from intarsia.planning.proof import Proven
from intarsia.planning.together import Group, partners, windows_together
from intarsia.planning.window import windows_beside
from intarsia.run.budget import Budget
from intarsia.run.filled import Filled, Held, Part, cut_boxes
from intarsia.run.gather import Fill, gather
from intarsia.run.losses import Losses
from intarsia.run.room import Bytes, Room
from intarsia.run.sharing import in_steps, share_out
from intarsia.run.slots import TargetSlots
from intarsia.run.source import Source
from intarsia.run.sums.checksum import join
from intarsia.run.sums.hashing import Sum, add_to, merged
from intarsia.run.sums.neighbours import Neighbours
from intarsia.run.sums.tally import Sums, Tallied, Tally
from intarsia.store.writing.staging import Staging
from intarsia.value import Window
from intarsia.value.bits import bits_dtype

Progress = Callable[[int], None]


Step = tuple[tuple[Proven, Box], ...]
Windows = tuple[tuple[Target, Box], ...]
Ranges = Mapping[str, Sequence[tuple[int, int]]]
"""For each target, ranges of its row-major elements."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a step wrote: its windows, a part for every box of a slot, what its numbers lost, and sums."""

    windows: Windows
    parts: tuple[Part, ...]
    losses: Losses
    sums: Mapping[tuple[str, str], Sum] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(box.size * target.dtype.itemsize for target, box in self.windows)


def cut_steps(
    proofs: Sequence[Proven],
    arrangement: Arrangement,
    window_bytes: int,
    done: Ranges | None = None,
) -> list[Step]:
    """Windows of what is not done of the targets, in the order of their bytes and in steps of at
    most `window_bytes`."""
    done = done or {}
    order = {file: k for k, file in enumerate(arrangement.files)}

    def place(proven: Proven) -> tuple[int, int]:
        slots = arrangement.slots[proven.target.name]
        return min(((order[s.file], s.start_bytes) for s in slots), default=(0, 0))

    by_file = all(len(arrangement.slots[p.target.name]) == 1 for p in proofs)
    groups = partners(sorted(proofs, key=place) if by_file else proofs)
    windows = (some for group in groups for some in _windows(group, window_bytes, done))
    return [tuple(chain(*step)) for step in in_steps(windows, window_bytes, nbytes_of)]


def nbytes_of(step: Iterable[tuple[Proven, Box]]) -> int:
    """What windows of targets come to."""
    return sum(box.size * proven.target.dtype.itemsize for proven, box in step)


def _windows(group: Group, window_bytes: int, done: Ranges) -> Iterator[Step]:
    """The windows of what is not done of targets that move together."""
    if not any(done.get(proven.target.name) for proven in group):
        yield from windows_together(group, window_bytes)
        return
    for proven in group:
        target, parts = proven.target, done.get(proven.target.name, ())
        for window in windows_beside(target.shape, target.dtype.itemsize, window_bytes, parts):
            yield ((proven, window),)


@dataclass
class Execution:
    """One run of a plan into a staging folder."""

    source: Source
    arrangement: Arrangement
    staging: Staging
    budget: Budget
    progress: Progress = lambda count: None
    record: Callable[[Written], None] = lambda written: None
    tally: Tally = field(default_factory=Tally)
    sums: Sums = field(default_factory=dict)
    _counting: threading.Lock = field(default_factory=threading.Lock)
    _room: Room = field(default_factory=Room)
    _boxes: Room = field(default_factory=Room)

    @cached_property
    def _slots(self) -> Mapping[str, TargetSlots]:
        return {name: TargetSlots(slots) for name, slots in self.arrangement.slots.items()}

    def run(self, steps: Sequence[Step]) -> list[Part]:
        """Carry out steps on the budget's threads; the first failure stops all of them."""
        done = share_out(steps, self.budget.workers, self.step, uses=self._files)
        return list(chain(*done))

    def _files(self, step: Step) -> set[str]:
        """The files that a step writes: the kernel lets one thread at a time write a file."""
        return {
            slot.file
            for proven, window in step
            for _, slot, _ in self._slots[proven.target.name].in_window(window)
        }

    def step(self, step: Step) -> list[Part]:
        """Fill the windows of one step and write them; the parts whose slots await other steps."""
        source = replace(self.source, losses=Counter())
        filled, tallied = self._fill(step, source)
        held = [each for x in filled for each in x.held]
        parts = [
            each.part(crc)
            for each, crc in zip(held, chain(*(t.crcs for t in tallied)), strict=True)
        ]
        self._write(zip(held, parts, strict=True))
        sums = merged(one.sums for one in tallied)
        windows = tuple((proven.target, box) for proven, box in step)
        written = Written(windows, tuple(parts), source.losses, sums)
        self.record(written)
        with self._counting:
            self.source.losses.update(source.losses)
            add_to(self.sums, sums)
            self.progress(written.nbytes)
        return [part for each, part in zip(held, parts, strict=True) if each.is_partial]

    def _fill(self, step: Step, source: Source) -> tuple[list[Filled], list[Tallied]]:
        """The windows of a step, in this thread's memory, and their sums."""
        runs = [self.tally.run_of(proven.target, window) for proven, window in step]
        together = Neighbours([run for run in runs if run is not None])
        at = together.nbytes
        alone = [each for each, run in zip(step, runs, strict=True) if run is None]
        memory = self._room.take(at + nbytes_of(alone))
        views = iter(together.views(memory[:at]))
        wholes: list[Bytes] = []
        fills: list[Fill] = []
        for (proven, window), run in zip(step, runs, strict=True):
            if run is None:
                wholes.append(memory[at : at + window.size * proven.target.dtype.itemsize])
                at += len(wholes[-1])
            else:
                wholes.append(next(views))
            fills += source.fill_box(proven, window, wholes[-1])
        gather(source.folder, fills)
        room, filled = self._boxes.take(nbytes_of(step)), list[Filled]()
        for (proven, window), run, whole in zip(step, runs, wholes, strict=True):
            slots = self._slots[proven.target.name].in_window(window)
            cut = cut_boxes(proven.target, window, whole, run, slots, room[: len(whole)])
            if proven.target.value.parts:
                cut = replace(cut, parts=_parts(source, proven.target, window))
            filled.append(cut)
            room = room[len(whole) :]
        return filled, self.tally.of_each(filled, together, memory[: together.nbytes])

    def _write(self, pieces: Iterable[tuple[Held, Part]]) -> None:
        """Write what is held of slots; a slot that is held as a whole goes with its wrapping."""
        writes: dict[str, list[tuple[int, list[Any]]]] = {}
        for held, part in pieces:
            slot = held.slot
            out: list[Any] = [held.buffer]
            at = slot.start_bytes + part.start_bytes
            if slot.wrapping is not None and not held.is_partial:
                out = [slot.wrapping.head(part.crc), held.buffer, slot.wrapping.tail(part.crc)]
                at = slot.start_bytes - slot.wrapping.start_bytes
            if slot.gap_bytes and not part.start_bytes and not held.is_partial:
                out.insert(0, bytes(slot.gap_bytes))
                at -= slot.gap_bytes
            writes.setdefault(slot.file, []).append((at, out))
        for file, blocks in writes.items():
            for at, buffers in adjoin(blocks):
                self.staging.write(file, at, buffers)

    def finish(self, parts: Sequence[Part], targets: Mapping[str, Target]) -> None:
        """Write what needs every part: the wrapping of slots that were written in stretches."""
        by_slot: dict[tuple[str, int], list[Part]] = {}
        for part in parts:
            by_slot.setdefault((part.target, part.slot), []).append(part)
        for name, slots in self.arrangement.slots.items():
            for k, slot in enumerate(slots):
                if slot.wrapping is None:
                    continue
                whole_bytes = slot.box.size * targets[name].dtype.itemsize
                if whole_bytes == 0:
                    self._wrap(slot, 0, 0)
                elif (name, k) in by_slot:
                    held = sorted(by_slot[name, k], key=lambda p: p.start_bytes)
                    self._wrap(slot, _joined(held, whole_bytes, name), whole_bytes)

    def _wrap(self, slot: Slot, crc: int, length_bytes: int) -> None:
        assert slot.wrapping is not None
        self.staging.write(
            slot.file, slot.start_bytes - slot.wrapping.start_bytes, [slot.wrapping.head(crc)]
        )
        self.staging.write(slot.file, slot.start_bytes + length_bytes, [slot.wrapping.tail(crc)])


def _parts(source: Source, target: Target, window: Box) -> dict[str, Window]:
    """What the parts of a target's value hold for the elements of a window, row by row."""
    found = source.parts_for(target.value.parts, layout_of_box(target.layout, window))
    return {name: Window(held.view(bits_dtype(t)), t) for name, (held, t) in found.items()}


def _joined(parts: Sequence[Part], whole_bytes: int, name: str) -> int:
    at, crc = 0, 0
    for part in parts:
        if part.start_bytes != at:
            raise CoverageError(
                f"`{name}`: byte {at:,} was not written, byte {part.start_bytes:,} was"
            )
        crc = join(crc, part.crc, part.length_bytes)
        at += part.length_bytes
    if at != whole_bytes:
        raise CoverageError(f"`{name}`: {at:,} of {whole_bytes:,} bytes were written")
    return crc


def adjoin(blocks: list[tuple[int, list[Any]]]) -> Iterator[tuple[int, list[Any]]]:
    """Blocks in order of their place, those that touch put together."""
    start, end = -1, -1
    out: list[Any] = []
    for at, buffers in sorted(blocks, key=lambda block: block[0]):
        if at != end:
            if out:
                yield start, out
            start, end, out = at, at, []
        out += buffers
        end += sum(len(b) for b in buffers)
    if out:
        yield start, out
