"""Windows of a step that are moved from file to file, all of them by one call, and what is written around them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import CoverageError
from intarsia.format.arrangement import SlotColumns, Wrapping, joined_places
from intarsia.kernel.moving import Moved
from intarsia.mesh import Box
from intarsia.planning.manifest import Target
from intarsia.planning.proof import Proven
from intarsia.planning.together import Windows
from intarsia.run.source import Source
from intarsia.run.sums.hashing import Sum, add_to
from intarsia.run.windows.slots import Slots
from intarsia.run.windows.strips import StripPlan, StripPlans
from intarsia.run.windows.tally import Sums
from intarsia.run.windows.written import NOTHING, Written
from intarsia.store.moving import move
from intarsia.store.writing.staging import Staging

Numbers = NDArray[np.uint64]


class Movable(NamedTuple):
    """A window that is moved from file to file: where its chunks begin, and the slots of its target."""

    target: Target
    window: Box
    plan: StripPlan
    files: Sequence[str]
    starts: Sequence[int]
    slots: SlotColumns


def movable_windows(
    step: Iterable[Windows], plans: StripPlans, source: Source, slots: Slots
) -> tuple[list[Movable], list[Windows]]:
    """The windows of a step that are moved from file to file; and the others, as far as they belong together."""
    near = list[tuple[int, Proven, Box, StripPlan]]()
    others = list[tuple[int, tuple[Proven, Box]]]()
    for number, together in enumerate(step):
        for proven, window in together:
            plan = plans.of(proven, window) if proven.src is source.manifest else None
            if plan is None:
                others.append((number, (proven, window)))
            else:
                near.append((number, proven, window, plan))
    wanted = [
        (proven.sources[k], proven.sources[k].chunks[n])
        for _, proven, _, plan in near
        for k, n in plan.chunks
    ]
    begins = iter(source.begins_near(wanted))
    chunks, found = iter(wanted), list[Movable]()
    for number, proven, window, plan in near:
        files = [next(chunks)[1].file for _ in plan.chunks]
        starts = [start for _ in plan.chunks if (start := next(begins)) is not None]
        if len(starts) < len(files):
            others.append((number, (proven, window)))
        else:
            of_target = slots[proven.target.name]
            found.append(Movable(proven.target, window, plan, files, starts, of_target))
    others.sort(key=itemgetter(0))
    each = groupby(others, itemgetter(0))
    return found, [tuple([window for _, window in some]) for _, some in each]


class _Numbered(dict[str, int]):
    """Names, numbered in the order in which they are asked for."""

    def __missing__(self, name: str) -> int:
        self[name] = number = len(self)
        return number


class _Group(NamedTuple):
    """Windows of one plan; in the rows of the arrays what belongs to each of them.

    `sources` and `targets` are numbers of files and bytes of these at which chunks and slots begin, `gaps` the zeros
    before slots.
    """

    windows: Sequence[Movable]
    sources: tuple[Numbers, Numbers]
    targets: tuple[Numbers, Numbers]
    gaps: Numbers


def move_windows(source: Source, staging: Staging, windows: Sequence[Movable]) -> Written | None:
    """Move windows from file to file, and write what goes around them; None where too many files would be open."""
    if not windows:
        return NOTHING
    read, written = _Numbered(), _Numbered()
    by_plan: dict[int, list[Movable]] = {}
    for window in windows:
        by_plan.setdefault(id(window.plan), []).append(window)
    groups = [_group(alike, read, written) for alike in by_plan.values()]
    strips, sides = list[NDArray[np.void]](), list[NDArray[np.void]]()
    sums = boxes = 0
    for group in groups:
        plan, count = group.windows[0].plan, len(group.windows)
        (read_files, read_starts), (files, starts) = group.sources, group.targets
        files = np.concatenate([read_files, files + np.uint64(len(read))], 1)
        starts = np.concatenate([read_starts, starts], 1)
        some, of_some = (np.tile(x, (count, 1)) for x in (plan.strips, plan.sides))
        number = np.arange(count, dtype=np.uint64)[:, None]
        some["sum"] += sums + number * len(plan.tensors)
        of_some["box"] += boxes + number * len(plan.box_bytes)
        of_some["at"] += starts[:, plan.sides["file"]]
        of_some["file"] = files[:, plan.sides["file"]]
        strips.append(some.reshape(-1))
        sides.append(of_some.reshape(-1))
        sums, boxes = sums + count * len(plan.tensors), boxes + count * len(plan.box_bytes)
    both, held = (np.concatenate(strips), np.concatenate(sides)), list[NDArray[np.uint8]]()
    crcs = list[NDArray[np.uint32]]()

    def around(moved: Moved) -> Numbers:
        crcs.extend(_crcs(groups, moved))
        return _pieces_around(groups, crcs, held)

    moved = move(source.folder, staging, ([*read], [*written]), *both, sums, boxes, around)
    return None if moved is None else _written(groups, moved, crcs)


def _group(windows: Sequence[Movable], read: _Numbered, written: _Numbered) -> _Group:
    def numbers(rows: Iterable[Sequence[int]]) -> Numbers:
        return np.array([*rows], np.uint64)

    places = joined_places([x.slots for x in windows])
    boxes = [each.number for each in windows[0].plan.cut.boxes]
    files, starts, gaps = (x.reshape(len(windows), -1)[:, boxes] for x in places[1:])
    used, which = np.unique(files, return_inverse=True)
    of_used = np.array([written[places.names[k]] for k in used.tolist()], np.uint64)
    return _Group(
        windows,
        (
            numbers([read[file] for file in x.files] for x in windows),
            numbers(x.starts for x in windows),
        ),
        (of_used[which.reshape(files.shape)], starts.astype(np.uint64)),
        gaps.astype(np.uint64),
    )


def _crcs(groups: Sequence[_Group], moved: Moved) -> Iterator[NDArray[np.uint32]]:
    """The CRC-32 of the boxes of each group, in rows; raise where not all of a box was moved."""
    box = 0
    for group in groups:
        plan, count = group.windows[0].plan, len(group.windows)
        boxes = slice(box, box := box + count * len(plan.box_bytes))
        lengths = moved.box_bytes[boxes].reshape(count, -1)
        if (lengths != plan.box_bytes).any():
            names = ", ".join(x.target.name for x in group.windows)
            raise CoverageError(f"{lengths.sum():,} bytes of `{names}` were moved")
        yield moved.box_crcs[boxes].reshape(count, -1) ^ plan.unlike


def _written(groups: Sequence[_Group], moved: Moved, crcs: Sequence[NDArray[np.uint32]]) -> Written:
    """What became of windows that were moved."""
    both = zip(moved.pages.tolist(), moved.crcs.tolist(), strict=True)
    sums: Sums = {}
    for x in chain(*(group.windows for group in groups)):
        tensors = x.target.layout.tensors
        for (k, nbytes), one in zip(x.plan.tensors, both, strict=False):
            if x.plan.summed:
                add_to(sums, {(x.target.name, tensors[k]): Sum(*one, nbytes)})
    return Written(
        tuple((x.target, x.window) for group in groups for x in group.windows),
        tuple(map(tuple, chain(*(rows.tolist() for rows in crcs)))),
        Counter(),
        sums,
    )


def _pieces_around(
    groups: Sequence[_Group], crcs: Iterable[NDArray[np.uint32]], held: list[NDArray[np.uint8]]
) -> Numbers:
    """What is written around boxes with these CRC-32, as `_around` says."""
    wrapped: dict[int, tuple[Wrapping | None, list[Numbers]]] = {}
    for group, found in zip(groups, crcs, strict=True):
        plan, shape = group.windows[0].plan, group.gaps.shape
        every = np.empty((5, *shape), np.uint64)
        columns = *group.targets, group.gaps, plan.box_bytes, found
        for row, column in zip(every, columns, strict=True):
            row[...] = column
        for wrapping, numbers in plan.around:
            _, more = wrapped.setdefault(id(wrapping), (wrapping, []))
            more.append(every[:, :, numbers].reshape(len(every), -1))
    pieces = [
        piece
        for wrapping, some in wrapped.values()
        for piece in _around(wrapping, np.concatenate(some, 1), held)
    ]
    return np.concatenate([np.empty((4, 0), np.uint64), *pieces], 1)


def _around(
    wrapping: Wrapping | None, boxes: Numbers, held: list[NDArray[np.uint8]]
) -> Iterator[Numbers]:
    """What is written around boxes that are wrapped alike: files, bytes of these, addresses and lengths.

    `boxes` are the files of their slots, where those begin, the gaps before them, lengths and CRC-32; what lies at
    the addresses is kept in `held`.
    """
    files, starts, gaps, lengths, crcs = boxes
    if wrapping is not None:
        head, tails = np.frombuffer(wrapping.head, np.uint8), wrapping.tails(crcs.astype(np.uint32))
        held += [head, tails]
        count, width = tails.shape
        at = tails.ctypes.data + np.arange(count, dtype=np.uint64) * np.uint64(width)
        yield _pieces(files, starts + lengths, at, width)
        starts = starts - np.uint64(wrapping.start_bytes)
        yield _pieces(files, starts, head.ctypes.data, len(head))
    if gaps.any():
        held.append(zeros := np.zeros(int(gaps.max()), np.uint8))
        yield _pieces(files, starts - gaps, zeros.ctypes.data, gaps)


def _pieces(files: Numbers, *columns: Numbers | int) -> Numbers:
    found = np.empty((4, len(files)), np.uint64)
    for row, column in zip(found, (files, *columns), strict=True):
        row[...] = column
    return found
