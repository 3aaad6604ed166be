"""Two checkpoints compared with each other, window by window, whatever their formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from intarsia.checking.alone.entries import damaged_entries
from intarsia.checking.alone.unmapped import unmapped_faults
from intarsia.checking.fault import Fault, gathered
from intarsia.checking.pair.comparison import Comparison, Difference
from intarsia.checking.pair.differing import Differing, Unequal, differ_from_main, same, unequal_at
from intarsia.checking.pair.non_tensors import compare_non_tensors
from intarsia.checking.pair.pairs import Matched, Pair, match, widest, windows_of_pair
from intarsia.checking.pair.side_by_side import InFiles, SideBySide
from intarsia.checkpoint import Checkpoint
from intarsia.family import table_for
from intarsia.mesh import Box, Shape
from intarsia.opened.padding import not_compared, trained_padding
from intarsia.planning.manifest import Logical, Manifest
from intarsia.planning.problem import FILE_LOST
from intarsia.run.budget import Budget
from intarsia.run.progress import Progress, after
from intarsia.run.room import Bytes, Room, in_parts
from intarsia.run.sharing import in_steps, share_out
from intarsia.state.names import parameter_of
from intarsia.value.bits import bits_dtype

if TYPE_CHECKING:
    from intarsia.checking.diagnosis import Finding


def compare(
    a: Checkpoint, b: Checkpoint, budget: Budget, progress: Progress | None = None
) -> Comparison:
    """Compare every logical tensor of two checkpoints bit by bit, and explain what differs."""
    a.prover.all()
    b.prover.all()
    beside = compare_non_tensors(a.manifest, b.manifest, budget)  # quick, and may be refused
    matched = match(a, b)
    pairs = matched.pairs
    unequal = _Comparing(a, b, pairs, budget).unequal(progress)
    more = after(progress, sum(p.a.nbytes for p in pairs))
    different: tuple[Difference, ...] = ()
    faults: tuple[Fault, ...] = ()
    if unequal or matched.only_in_a or matched.only_in_b or matched.apart.text:
        from intarsia.checking.diagnosis import diagnose  # equal checkpoints need none of it

        diagnosis = diagnose(a, b, matched, unequal, budget, more)
        different = tuple(map(_difference, unequal, diagnosis.findings))
        faults = diagnosis.faults
    return Comparison(
        a=a.manifest.path,
        b=b.manifest.path,
        compared=len(pairs),
        elements=sum(p.a.size for p in pairs),
        only_in_a=matched.only_in_a,
        only_in_b=matched.only_in_b,
        not_comparable=matched.apart.names,
        different=different,
        notes=(
            *matched.notes,
            *_on_names(a, b, matched),
            *_padding(a, "A", budget),
            *_padding(b, "B", budget),
        ),
        faults=faults,
        beside=beside,
        damaged=tuple(
            replace(fault, where=f"{side}: {fault.where}")
            for side, held, other in (("A", a.manifest, b.manifest), ("B", b.manifest, a.manifest))
            for fault in gathered(_not_compared(held, other, budget))
        ),
        rounded=sum(p.rounded for p in pairs),
    )


def _not_compared(held: Manifest, other: Manifest, budget: Budget) -> Iterator[Fault]:
    """What is damaged of all that the other side has nothing to hold against."""
    yield from unmapped_faults(held, budget)
    yield from damaged_entries(held, compared=other.entries)
    for problem in held.problems:
        if problem.kind == FILE_LOST:
            yield Fault(FILE_LOST, problem.tensors, held.path, problem.text)


def _on_names(a: Checkpoint, b: Checkpoint, matched: Matched) -> Iterator[str]:
    """How the names were read of a side that has some that the model has not, where others are missing there."""
    table = table_for(a.config) or table_for(b.config)
    if table is None or not (matched.only_in_a and matched.only_in_b):
        return
    for side, held, only in (("A", a, matched.only_in_a), ("B", b, matched.only_in_b)):
        if any(parameter_of(name) not in table.logical for name in only):
            chosen = held.manifest.chosen
            yield from (f"{side}: {note}" for note in held.manifest.notes if note not in chosen)


def _padding(x: Checkpoint, side: str, budget: Budget) -> Iterator[str]:
    """What is said of rows that are no part of the model and not compared."""
    return not_compared(trained_padding(x.manifest, budget), side)


def _difference(x: Unequal, found: Finding) -> Difference:
    text = f"{x.text}; {found.text}" if x.text and not x.kind else found.text
    return Difference(x.pair.name, x.elements, x.first, x.max_abs, text, found.kind, found.where)


@dataclass
class _Found:
    """What differs of one pair: exactly, and beyond rounding where the element types are two."""

    exact: Differing = field(default_factory=Differing)
    beyond: Differing = field(default_factory=Differing)
    same_bits: bool = True

    def join(self, later: _Found) -> None:
        """Add what differs in windows that come after these."""
        self.exact.join(later.exact)
        self.beyond.join(later.beyond)
        self.same_bits &= later.same_bits


class _PairWindow(NamedTuple):
    """A window of the pair of a number: its bytes in A, and the memory that one side of it takes."""

    number: int
    box: Box
    nbytes: int
    held_bytes: int


_HELD_BYTES = attrgetter("held_bytes")

TOGETHER = 512
"""Windows whose runs are put together at once."""


class _Step(NamedTuple):
    """Windows that one thread compares: those from `start` on of many whose files are looked at together."""

    windows: Sequence[_PairWindow]
    nbytes: int
    in_files: InFiles | None = None
    start: int = 0


@dataclass
class _Comparing:
    """Two checkpoints that are compared window by window."""

    a: Checkpoint
    b: Checkpoint
    pairs: Sequence[Pair]
    budget: Budget
    rooms: tuple[Room, Room] = field(default_factory=lambda: (Room(), Room()))

    def unequal(self, progress: Progress | None) -> list[Unequal]:
        """What differs; threads share windows and not tensors, as some tensors are far larger than others."""
        found: dict[int, _Found | Unequal | None] = {}
        for part in share_out(
            [*self._steps()],
            self.budget.workers,
            self._work,
            progress=progress,
            nbytes=attrgetter("nbytes"),
        ):
            for number, more in part.items():
                before = found.setdefault(number, more)
                if before is not more and isinstance(before, _Found) and isinstance(more, _Found):
                    before.join(more)
        judged = (
            _judged(self.pairs[k], x) if isinstance(x, _Found) else x
            for k, x in sorted(found.items())
        )
        return [x for x in judged if x is not None]

    def _steps(self) -> Iterator[_Step]:
        """Pairs that are not compared window by window, and then the windows of the others."""
        windows: list[_PairWindow] = []
        cut: dict[tuple[Shape, int, int], list[tuple[Box, int, int]]] = {}
        for number, pair in enumerate(self.pairs):
            a, shape = pair.a, pair.a.shape
            if shape != pair.b.shape or pair.rounded:
                yield _Step([_PairWindow(number, Box.whole(shape), a.nbytes, 0)], a.nbytes)
                continue
            size, most = a.dtype.itemsize, widest(pair)
            if (each := cut.get((shape, size, most))) is None:
                boxes = windows_of_pair(pair, self.budget)
                each = [(box, box.size * size, box.size * most) for box in boxes]
                cut[shape, size, most] = each
            windows += [_PairWindow(number, *x) for x in each]
        sides = SideBySide(self.a, self.b, self.pairs)
        # What is compared in its files needs no memory.
        total, least = sum([pair.a.nbytes for pair in self.pairs]), self.budget.side_bytes
        steps = in_steps(windows, self.budget.call_bytes(total, least), _HELD_BYTES)
        for some in in_steps(steps, TOGETHER, len):
            lying = [(number, box) for step in some for number, box, _, _ in step]
            together, start = InFiles(sides, lying, len(some)), 0
            for step in some:
                yield _Step(step, sum([window.nbytes for window in step]), together, start)
                start += len(step)

    def _work(self, step: _Step) -> Mapping[int, _Found | Unequal | None]:
        windows, _, in_files, start = step
        if in_files is None:
            return {x.number: self._whole(self.pairs[x.number]) for x in windows}
        left = [windows[k - start] for k in in_files.not_equal(start, start + len(windows))]
        found = {window.number: _Found() for window in left}
        for some in in_steps(left, self.budget.side_bytes, _HELD_BYTES):
            self._read_both(some, found)
        return found

    def _whole(self, pair: Pair) -> Unequal | None:
        if pair.a.shape != pair.b.shape:
            return Unequal(pair, max(pair.a.size, pair.b.size), (), float("nan"))
        return differ_from_main(self.a, self.b, pair, self.budget)

    def _read_both(self, step: Sequence[_PairWindow], found: Mapping[int, _Found]) -> None:
        """Read both sides of windows, and add what differs."""
        wanted = [(self.pairs[number], box) for number, box, _, _ in step]
        lefts = _read(self.a, [(pair.a, box) for pair, box in wanted], self.rooms[0])
        rights = _read(self.b, [(pair.b, box) for pair, box in wanted], self.rooms[1])
        all_alike = all(pair.a.dtype == pair.b.dtype for pair, _ in wanted)
        if all_alike and _are_same(lefts.memory, rights.memory):
            return
        for window, left, right in zip(step, lefts.each, rights.each, strict=True):
            number, box, _, _ = window
            pair, tally = self.pairs[number], found[number]
            alike = pair.a.dtype == pair.b.dtype
            if alike and _are_same(left, right):
                continue
            x, y = left.view(bits_dtype(pair.a.dtype)), right.view(bits_dtype(pair.b.dtype))
            tally.exact.add(unequal_at(x, y, pair), x, y, box, pair)
            if not alike:
                unequal = ~same(x, y, pair.a.dtype, pair.b.dtype)
                tally.beyond.add(unequal, x, y, box, pair)
                tally.same_bits &= _are_same(left, right)


class _Side(NamedTuple):
    """What one side holds of the windows of a step: all of it, and each window's part."""

    memory: Bytes
    each: list[Bytes]


def _read(x: Checkpoint, wanted: Sequence[tuple[Logical, Box]], room: Room) -> _Side:
    """Windows of logical tensors, one after another in a room, read together."""
    lengths = [box.size * tensor.dtype.itemsize for tensor, box in wanted]
    memory = room.take(sum(lengths))
    each = in_parts(memory, lengths)
    proofs = (x.prover.tensor(tensor.name) for tensor, _ in wanted)
    x.read_boxes(zip(proofs, (box for _, box in wanted), each, strict=True))
    return _Side(memory, each)


def _are_same(left: Bytes, right: Bytes) -> bool:
    """Whether bytes are equal, compared a word at a time where they are words."""
    if len(left) % 8 == 0 == len(right) % 8:
        left, right = left.view(np.uint64), right.view(np.uint64)
    return np.array_equal(left, right)


def _judged(pair: Pair, found: _Found) -> Unequal | None:
    exact, beyond = found.exact, found.beyond
    if pair.a.dtype != pair.b.dtype:
        kind, story = _story(pair, exact.count, beyond.count, found.same_bits)
        text = f"{pair.a.dtype} in A, {pair.b.dtype} in B; {story}"
        shown = beyond if beyond.count else exact
        first, most = shown.first or (), shown.most
        return Unequal(pair, shown.count, first, most, kind, text, found.same_bits)
    return None if exact.first is None else Unequal(pair, exact.count, exact.first, exact.most)


def _story(pair: Pair, exact: int, beyond: int, same_bits: bool) -> tuple[str, str]:
    """The kind, if that is all, and what is said of numbers of two types, as so many differ exactly and beyond rounding."""
    if beyond and same_bits:
        return "dtype-relabelled", "the bits are the same: one side names the wrong type"
    if beyond:
        return "", "the numbers differ beyond rounding"
    if not exact:
        return "dtype-changed", "the numbers are equal"
    if pair.a.dtype.itemsize == pair.b.dtype.itemsize:
        return "rounded", "the numbers are equal except for rounding"
    return "rounded", "the narrower is the wider one rounded"
