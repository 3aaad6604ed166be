"""Carrying out a proven plan: read, scatter, sum, write, one window of memory at a time.

Work is cut into steps that do not depend on each other: threads take them in order, and so
may the ranks of a job.  Every byte of the destination has its place before the first is
written, so the outcome does not depend on who wrote what.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from typing import Any

from intarsia.errors import CoverageError
from intarsia.format.base import Arrangement, Slot
from intarsia.kernel.library import has_kernel
from intarsia.mesh import Box
from intarsia.planning.copy import layout_of_box
from intarsia.planning.manifest import Target
from intarsia.planning.proof import Proven
from intarsia.planning.together import Group, partners, windows_together
from intarsia.planning.window import windows_beside
from intarsia.run import strips
from intarsia.run.budget import MANY, Budget
from intarsia.run.filled import Filled, Rows, cut_boxes
from intarsia.run.gather import Fill, Straight, gather
from intarsia.run.room import Bytes, Room, in_parts
from intarsia.run.sharing import in_steps, share_out
from intarsia.run.slots import BoxInWindow, Slots
from intarsia.run.source import Source
from intarsia.run.strips import InStrips, in_strips
from intarsia.run.sums.checksum import join
from intarsia.run.sums.hashing import add_to, merged
from intarsia.run.sums.neighbours import Neighbours, Run
from intarsia.run.sums.tally import Sums, Tallied, Tally
from intarsia.run.written import Part, Written, unfinished
from intarsia.store.moving import move
from intarsia.store.writing.staging import Staging
from intarsia.value import Window
from intarsia.value.bits import bits_dtype

Progress = Callable[[int], None]


Step = tuple[tuple[Proven, Box], ...]
Blocks = defaultdict[str, list[tuple[int, list[Any]]]]
"""For each file, buffers that are to be written one after another, and the byte at which each row of them begins."""
Ranges = Mapping[str, Sequence[tuple[int, int]]]
"""For each target, ranges of its row-major elements."""


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
    def _slots(self) -> Slots:
        return Slots(self.arrangement.slots)

    def run(self, steps: Sequence[Step]) -> list[Part]:
        """Carry out steps on the budget's threads; the first failure stops all of them."""
        done = share_out(steps, self.budget.workers, self.step, uses=self._files)
        return list(chain(*done))

    def _files(self, step: Step) -> set[str]:
        """The files that a step writes: the kernel lets one thread at a time write a file."""
        return {
            self._slots[proven.target.name][each.number].file
            for proven, window in step
            for each in self._slots.pattern(proven.target.name).cut(window).boxes
        }

    def step(self, step: Step) -> list[Part]:
        """Fill the windows of one step and write them; the parts whose slots await other steps."""
        source = replace(self.source, losses=Counter())
        apart, others = self._in_strips(step, source)
        moved = self._move(apart, source)
        filled, tallied = self._fill(others, source)
        blocks: Blocks = defaultdict(list)
        for x, one in zip(apart, moved, strict=True):
            self._put_around(x, one, blocks)
        self._put(zip(filled, tallied, strict=True), blocks)
        for file, each in blocks.items():
            for at, buffers in adjoin(each):
                self.staging.write(file, at, buffers)
        sums = merged(one.sums for one in (*moved, *tallied))
        windows = [(x.target, x.window) for x in apart]
        windows += [(target, x.window) for x in filled for target in x.targets]
        crcs = chain(
            (tuple(crc for (crc,) in one.crcs) for one in moved),
            *(
                zip(*one.crcs, strict=True) if one.crcs else [()] * len(x.targets)
                for x, one in zip(filled, tallied, strict=True)
            ),
        )
        written = Written(tuple(windows), tuple(crcs), source.losses, sums)
        self.record(written)
        with self._counting:
            self.source.losses.update(source.losses)
            add_to(self.sums, sums)
            self.progress(written.nbytes)
        return unfinished(written, self._slots)

    def _in_strips(self, step: Step, source: Source) -> tuple[list[InStrips], Step]:
        """The windows of a step that are moved from file to file; and the others."""
        if not has_kernel() or not self.staging.can_move:
            return [], step
        many = self.budget.workers >= MANY
        least_bytes = strips.LEAST_BYTES_OF_MANY if many else strips.LEAST_BYTES
        found, others = list[InStrips](), list[tuple[Proven, Box]]()
        for proven, window in step:
            name, one = proven.target.name, None
            if window.size * proven.target.dtype.itemsize >= least_bytes:
                cut = self._slots.pattern(name).cut(window)
                one = in_strips(source, proven, window, cut, self._slots[name])
            if one is None:
                others.append((proven, window))
            else:
                found.append(one)
        return found, tuple(others)

    def _move(self, windows: Sequence[InStrips], source: Source) -> list[Tallied]:
        """Move windows from file to file; their sums."""
        if not windows:
            return []
        every = [strip for x in windows for strip in x.strips]
        moved = iter(move(source.folder, self.staging, every))
        return [x.tallied(islice(moved, len(x.strips)), self.tally.sizes) for x in windows]

    def _fill(self, step: Step, source: Source) -> tuple[list[Filled], list[Tallied]]:
        """The windows of a step in this thread's memory, cut into the boxes of slots, and their sums."""
        small, alone = self._alike(step)
        together = Neighbours([run for alike in small for _, _, run in alike])
        at = together.nbytes
        memory, room = self._room.take(at + nbytes_of(alone)), self._boxes.take(nbytes_of(step))
        views = iter(together.views(memory[:at]))
        fills: list[Fill | Straight] = []
        for proven, window, _ in chain(*small):
            fills += source.fill_box(proven, window, next(views))
        wholes = in_parts(memory[at:], [nbytes_of([each]) for each in alone])
        for (proven, window), whole in zip(alone, wholes, strict=True):
            fills += source.fill_box(proven, window, whole)
        gather(source.folder, fills)
        filled, first = list[Filled](), 0
        for alike in small:
            rows = together.rows(memory[:at], first, len(alike))
            proofs, (window, *_), runs = zip(*alike, strict=True)
            filled.append(self._cut(proofs, window, rows, room, runs))
            room, first = room[rows.size :], first + len(alike)
        for (proven, window), whole in zip(alone, wholes, strict=True):
            cut = self._cut([proven], window, whole.reshape(1, -1), room)
            if proven.target.value.parts:
                cut = replace(cut, parts=_parts(source, proven.target, window))
            filled.append(cut)
            room = room[len(whole) :]
        return filled, self.tally.of_each(filled, together, memory[:at])

    def _alike(self, step: Step) -> tuple[Collection[Sequence[tuple[Proven, Box, Run]]], Step]:
        """The windows of a step that are summed together, in groups that are cut alike; and the others."""
        small: dict[Hashable, list[tuple[Proven, Box, Run]]] = {}
        alone: list[tuple[Proven, Box]] = []
        for proven, window in step:
            target = proven.target
            run = self.tally.run_of(target, window)
            if run is None:
                alone.append((proven, window))
            else:
                key = self._slots.pattern(target.name), window, target.dtype, run.start_bytes & 7
                small.setdefault(key, []).append((proven, window, run))
        return small.values(), tuple(alone)

    def _cut(
        self,
        proofs: Sequence[Proven],
        window: Box,
        rows: Rows,
        room: Bytes,
        runs: Sequence[Run] | None = None,
    ) -> Filled:
        targets = [proven.target for proven in proofs]
        cut = self._slots.pattern(targets[0].name).cut(window)
        return cut_boxes(targets, window, cut, rows, runs, room)

    def _put(self, filled: Iterable[tuple[Filled, Tallied]], blocks: Blocks) -> None:
        """Boxes of slots, to be written; one that is all of its slot goes with its wrapping."""
        for windows, tallied in filled:
            slots = [self._slots[target.name] for target in windows.targets]
            itemsize = windows.targets[0].dtype.itemsize
            for each, rows, crcs in zip(
                windows.cut.boxes, windows.boxes, tallied.crcs, strict=True
            ):
                first, number = each.first * itemsize, each.number
                for of_target, row, crc in zip(slots, rows, crcs, strict=True):
                    slot = of_target[number]
                    before, after, lead_bytes = _around(slot, each, crc)
                    at = slot.start_bytes + first - lead_bytes
                    blocks[slot.file].append((at, [*before, row, *after]))

    def _put_around(self, window: InStrips, tallied: Tallied, blocks: Blocks) -> None:
        """What goes around the boxes of a window that was moved, to be written."""
        slots, itemsize = self._slots[window.target.name], window.target.dtype.itemsize
        for each, (crc,) in zip(window.cut.boxes, tallied.crcs, strict=True):
            slot = slots[each.number]
            before, after, lead_bytes = _around(slot, each, crc)
            at = slot.start_bytes + each.first * itemsize
            if before:
                blocks[slot.file].append((at - lead_bytes, before))
            if after:
                blocks[slot.file].append((at + each.box.size * itemsize, after))

    def finish(self, parts: Sequence[Part], targets: Mapping[str, Target]) -> None:
        """Write what needs every part: the wrapping of slots that were written in stretches."""
        by_slot: dict[tuple[str, int], list[Part]] = {}
        for part in parts:
            by_slot.setdefault((part.target, part.slot), []).append(part)
        for (name, k), held in by_slot.items():
            slot = self.arrangement.slots[name][k]
            whole_bytes = slot.box.size * targets[name].dtype.itemsize
            held.sort(key=lambda part: part.start_bytes)
            self._wrap(slot, _joined(held, whole_bytes, name), whole_bytes)
        for slot in chain(*self.arrangement.slots.values()):
            if 0 in slot.box.shape and slot.wrapping is not None:
                self._wrap(slot, 0, 0)

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


def _around(slot: Slot, each: BoxInWindow, crc: int) -> tuple[list[Any], list[Any], int]:
    """What is written before and after a box of a slot, and how many bytes are before it."""
    wrapping, gap_bytes = slot.wrapping, slot.gap_bytes
    if wrapping is None:
        return ([bytes(gap_bytes)], [], gap_bytes) if gap_bytes and not each.first else ([], [], 0)
    if not each.whole:
        return [], [], 0
    before = [bytes(gap_bytes), wrapping.head(crc)] if gap_bytes else [wrapping.head(crc)]
    return before, [wrapping.tail(crc)], gap_bytes + wrapping.start_bytes


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
        end += sum(map(len, buffers))
    if out:
        yield start, out
