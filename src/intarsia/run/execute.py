"""Carrying out a proven plan: read, scatter, sum, write, one window of memory at a time.

Work is cut into steps that do not depend on each other: threads take them in order, and so
may the ranks of a job.  Every byte of the destination has its place before the first is
written, so the outcome does not depend on who wrote what.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from intarsia.errors import CoverageError
from intarsia.format.base import Arrangement, Slot, Wrapping
from intarsia.kernel.library import has_kernel
from intarsia.mesh import Box
from intarsia.planning.manifest import Target
from intarsia.planning.proof import Proven
from intarsia.planning.together import ProvenGroup, Windows, partners, windows_together
from intarsia.planning.window import windows_beside
from intarsia.run.budget import Budget
from intarsia.run.gather import gather
from intarsia.run.progress import Advance
from intarsia.run.reads import Fill, Straight
from intarsia.run.room import Bytes, Room, in_parts
from intarsia.run.sharing import in_steps, share_out
from intarsia.run.source import Source
from intarsia.run.sums.checksum import join
from intarsia.run.sums.hashing import add_to, merged_sums
from intarsia.run.windows.filled import Filled, cut_boxes
from intarsia.run.windows.moves import Movable, movable_windows, move_windows
from intarsia.run.windows.slots import Slots
from intarsia.run.windows.strips import StripPlans
from intarsia.run.windows.tally import Sums, Tallied, Tally
from intarsia.run.windows.written import NOTHING, SlotPart, Written, unfinished_parts
from intarsia.store.writing.staging import Staging

Step = Sequence[Windows]
"""Windows that one thread takes in hand; those that share bytes of the source are one of its parts."""
Blocks = defaultdict[str, list[tuple[int, list[Any]]]]
"""For each file, buffers that are to be written one after another, and the byte at which each row of them begins."""
Ranges = Mapping[str, Sequence[tuple[int, int]]]
"""For each target, ranges of its row-major elements."""


def cut_steps(
    proofs: Sequence[Proven], arrangement: Arrangement, budget: Budget, done: Ranges | None = None
) -> list[Step]:
    """Windows of what is not done of the targets, in the order of their bytes and in steps."""
    done = done or {}
    order = {file: k for k, file in enumerate(arrangement.files)}

    def place(proven: Proven) -> tuple[int, int]:
        slots = arrangement.slots[proven.target.name]
        return min(((order[s.file], s.start_bytes) for s in slots), default=(0, 0))

    by_file = all(len(arrangement.slots[p.target.name]) == 1 for p in proofs)
    groups = partners(sorted(proofs, key=place) if by_file else proofs)
    windows = (some for group in groups for some in _windows(group, budget.window_bytes, done))
    return [*in_steps(windows, budget.step_bytes, nbytes_of)]


def nbytes_of(windows: Iterable[tuple[Proven, Box]]) -> int:
    """What windows of targets come to."""
    return sum(box.size * proven.target.dtype.itemsize for proven, box in windows)


def _windows(group: ProvenGroup, window_bytes: int, done: Ranges) -> Iterator[Windows]:
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
    progress: Advance = lambda count: None
    record: Callable[[Written], None] = lambda written: None
    tally: Tally = field(default_factory=Tally)
    sums: Sums = field(default_factory=dict)
    _counting: threading.Lock = field(default_factory=threading.Lock)
    _room: Room = field(default_factory=Room)
    _boxes: Room = field(default_factory=Room)

    @cached_property
    def _slots(self) -> Slots:
        return Slots(self.arrangement.columns)

    def run(self, steps: Sequence[Step]) -> list[SlotPart]:
        """Carry out steps on the budget's threads; the first failure stops all of them."""
        done = share_out(steps, self.budget.workers, self.step, uses=self._files)
        return list(chain(*done))

    def _files(self, step: Step) -> set[str]:
        """The files that a step writes: the kernel lets one thread at a time write a file."""
        files = (self._slots.files(proven.target.name, window) for proven, window in chain(*step))
        return set(chain.from_iterable(files))

    @cached_property
    def _plans(self) -> StripPlans:
        return StripPlans(self._slots, self.tally.sizes)

    def step(self, step: Step) -> list[SlotPart]:
        """Fill the windows of one step and write them; the parts whose slots await other steps."""
        source, movable = replace(self.source, losses=Counter()), list[Movable]()
        others: Step = step
        if has_kernel() and self.staging.can_move:
            movable, others = movable_windows(step, self._plans, source, self._slots)
        moved = move_windows(source, self.staging, movable)
        if moved is None:
            moved, others = NOTHING, step
        some = in_steps(others, self.budget.window_bytes, nbytes_of)
        parts = [moved, *(self._through_memory([*chain(*each)], source) for each in some)]
        written = Written(
            tuple(chain(*(part.windows for part in parts))),
            tuple(chain(*(part.crcs for part in parts))),
            source.losses,
            merged_sums([part.sums for part in parts]),
        )
        self.record(written)
        with self._counting:
            self.source.losses.update(source.losses)
            add_to(self.sums, written.sums)
            self.progress(written.nbytes)
        return unfinished_parts(written, self._slots)

    def _through_memory(self, windows: Sequence[tuple[Proven, Box]], source: Source) -> Written:
        """Fill windows in this thread's memory, and write them."""
        filled = self._fill(windows, source)
        tallied = [self.tally.of(x) for x in filled]
        self._put(filled, tallied)
        return Written(
            tuple((x.target, x.window) for x in filled),
            tuple(one.crcs for one in tallied),
            source.losses,
            merged_sums([one.sums for one in tallied]),
        )

    def _fill(self, windows: Sequence[tuple[Proven, Box]], source: Source) -> list[Filled]:
        """The windows in this thread's memory, cut into the boxes of slots."""
        lengths = [nbytes_of([each]) for each in windows]
        wholes = in_parts(self._room.take(sum(lengths)), lengths)
        rooms = in_parts(self._boxes.take(sum(lengths)), lengths)
        fills: list[Fill | Straight] = []
        for (proven, window), whole in zip(windows, wholes, strict=True):
            fills += source.fill_box(proven, window, whole)
        gather(source.folder, fills)
        filled = list[Filled]()
        for (proven, window), whole, room in zip(windows, wholes, rooms, strict=True):
            target = proven.target
            cut = self._slots.pattern(target.name).cut(window)
            boxes = cut_boxes(target.dtype, window, cut, whole, room)
            filled.append(Filled(target, window, cut, whole, boxes))
        return filled

    def _put(self, filled: Iterable[Filled], tallied: Iterable[Tallied]) -> None:
        """Write boxes of slots; one that is all of its slot goes with its wrapping."""
        boxes = [
            (self._slots[x.target.name][each.number], each, x.target.dtype.itemsize, box, crc)
            for x, found in zip(filled, tallied, strict=True)
            for each, box, crc in zip(x.cut.boxes, x.boxes, found.crcs, strict=True)
        ]
        tails = _tails((slot.wrapping, crc) for slot, each, _, _, crc in boxes if each.whole)
        blocks: Blocks = defaultdict(list)
        for slot, each, itemsize, box, crc in boxes:
            at, wrapping = slot.start_bytes + each.first * itemsize, slot.wrapping
            buffers: list[Any] = [box]
            if wrapping is not None and each.whole:
                buffers = [wrapping.head, box, tails[id(wrapping), crc]]
                at -= wrapping.start_bytes
            if slot.gap_bytes and (not each.first if wrapping is None else each.whole):
                buffers = [bytes(slot.gap_bytes), *buffers]
                at -= slot.gap_bytes
            blocks[slot.file].append((at, buffers))
        for file, some in blocks.items():
            for at, buffers in adjoin(some):
                self.staging.write(file, at, buffers)

    def finish(self, parts: Sequence[SlotPart], targets: Mapping[str, Target]) -> None:
        """Write what needs every part: the wrapping of slots that were written in stretches."""
        by_slot: dict[tuple[str, int], list[SlotPart]] = {}
        for part in parts:
            by_slot.setdefault((part.target, part.slot), []).append(part)
        for (name, k), held in by_slot.items():
            slot = self.arrangement.slots[name][k]
            whole_bytes = slot.box.size * targets[name].dtype.itemsize
            held.sort(key=lambda part: part.start_bytes)
            self._wrap(slot, _joined(held, whole_bytes, name), whole_bytes)
        for name, slots in self.arrangement.columns.items():
            for k in self._slots.pattern(name).empty:
                self._wrap(slots[k], 0, 0)

    def _wrap(self, slot: Slot, crc: int, length_bytes: int) -> None:
        assert slot.wrapping is not None
        head = [bytes(slot.gap_bytes), slot.wrapping.head]
        before = slot.gap_bytes + slot.wrapping.start_bytes
        self.staging.write(slot.file, slot.start_bytes - before, head)
        self.staging.write(slot.file, slot.start_bytes + length_bytes, [slot.wrapping.tail(crc)])


def _joined(parts: Sequence[SlotPart], whole_bytes: int, name: str) -> int:
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


def _tails(wanted: Iterable[tuple[Wrapping | None, int]]) -> dict[tuple[int, int], Bytes]:
    """What follows data with these CRC-32, by the wrapping and the CRC-32."""
    alike: dict[int, tuple[Wrapping, dict[int, None]]] = {}
    for wrapping, crc in wanted:
        if wrapping is not None:
            alike.setdefault(id(wrapping), (wrapping, {}))[1][crc] = None
    return {
        (key, crc): tail
        for key, (wrapping, crcs) in alike.items()
        for crc, tail in zip(crcs, wrapping.tails(np.array([*crcs], np.uint32)), strict=True)
    }


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
