"""Carrying out reads: the byte ranges of many copies, each read once, scattered into buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np

from intarsia.dtypes import BY_NAME
from intarsia.layout import Loop, Piece
from intarsia.planning.coalesce import SourceRuns, grid, merge_runs, runs_of
from intarsia.run.reads import Fill, Front, Straight, scatter
from intarsia.run.room import Bytes, Room, in_parts
from intarsia.run.sharing import in_steps
from intarsia.store.base import NEAR_BYTES
from intarsia.store.reading.folder import Folder
from intarsia.value import Change

DIRECT_BYTES = 64 << 10
"""A run at least this long is read straight into its destination."""

KEPT_BYTES = 32 << 20
"""The largest stretch that is read into memory which a thread keeps."""

_AT_ONCE = 1024
"""Runs that are read between two looks at their file: a view of each is held meanwhile."""

_MOST_SCRATCH = 1.25
"""Copies are read together where that takes at most so many times the memory of their elements."""

_scratch = Room()
_SAME = Change(BY_NAME["U8"], BY_NAME["U8"])


def gather(folder: Folder, fills: Iterable[Fill | Straight]) -> int:
    """Carry out copies from the files of a folder; the bytes that were read."""
    wanted = list(fills)
    straight: dict[str, list[Straight]] = {}
    others: dict[str, list[Fill]] = {}
    for x in wanted:
        if isinstance(x, Straight):
            straight.setdefault(x.file, []).append(x)
        elif x.change.is_none and x.piece.run:
            straight.setdefault(x.file, []).append(_straight(x))
        else:
            others.setdefault(x.file, []).append(x)
    unlike = set[Front]()
    read = sum(
        _gather_file(folder, file, straight.get(file, []), others.get(file, []), unlike)
        for file in dict.fromkeys([*straight, *others])
    )
    if unlike:
        located = (x.front.located() for x in wanted if x.front in unlike)
        read += gather(folder, chain.from_iterable(located))
    return read


def _gather_file(
    folder: Folder, file: str, straight: list[Straight], fills: list[Fill], unlike: set[Front]
) -> int:
    """Carry out the copies from a file, and add to `unlike` the fronts that are not as expected."""
    in_order = all(x.piece.span + 1 == x.piece.size for x in fills)
    in_order = in_order and sum([x.piece.size * x.itemsize for x in fills]) <= KEPT_BYTES
    if in_order and (read := _read_in_order(folder, file, straight, fills, unlike)) is not None:
        return read
    fills = [*fills, *map(_as_fill, straight)]
    read = read_fronts(folder, file, [x.front for x in fills if x.front is not None], unlike)
    known = [x for x in fills if x.front not in unlike]
    return read + (_gather_runs(folder, file, known) if known else 0)


def _read_in_order(
    folder: Folder, file: str, straight: list[Straight], fills: list[Fill], unlike: set[Front]
) -> int | None:
    """Read copies that take all bytes from their first to their last; None where they lie in many short
    stretches, or two want the same bytes.

    Runs go straight to their destinations, fronts and what is moved then through memory that is kept.
    That is all for most windows of most checkpoints: nothing is to be merged for them.
    """
    fronts = [x.front for x in straight if x.front is not None]
    fronts += [x.front for x in fills if x.front is not None]
    held = [(_start(x), x.piece.size * x.itemsize) for x in fills]
    held += [(x.start_bytes, len(x.data)) for x in fronts]
    lengths = [length for _, length in held]
    parts = in_parts(_scratch_of(sum(lengths)), lengths)
    ranges = [(x.start_bytes, x.view) for x in straight]
    ranges += [(start, part.data) for (start, _), part in zip(held, parts, strict=True)]
    ranges.sort(key=itemgetter(0))
    end = stretches = 0
    for start, view in ranges:
        if start < end:
            return None
        stretches += start - end > NEAR_BYTES or not end
        end = start + len(view)
    read_bytes = sum([len(view) for _, view in ranges])
    if stretches > 1 and read_bytes < stretches * DIRECT_BYTES:
        return None
    folder.read_each(file, ranges)
    unlike.update(_unlike(fronts, parts[len(fills) :]))
    for fill, part in zip(fills, parts, strict=False):
        if fill.front not in unlike:
            scatter(fill, part, 0)
    return read_bytes


def read_fronts(folder: Folder, file: str, fronts: Sequence[Front], unlike: set[Front]) -> int:
    """Read the fronts of chunks by themselves, and add to `unlike` those that are not as expected."""
    if not fronts:
        return 0
    fronts = sorted(fronts, key=itemgetter(0))
    lengths = [len(front.data) for front in fronts]
    parts = in_parts(_scratch_of(sum(lengths)), lengths)
    starts = [front.start_bytes for front in fronts]
    folder.read_each(file, [(at, x.data) for at, x in zip(starts, parts, strict=True)])
    unlike.update(_unlike(fronts, parts))
    return sum(lengths)


def _unlike(fronts: Sequence[Front], read: Sequence[Bytes]) -> Iterator[Front]:
    """The fronts that are not as expected."""
    for front, part in zip(fronts, read, strict=True):
        if part.tobytes() != front.data:
            yield front


def _straight(fill: Fill) -> Straight:
    """A copy that is one run of file and buffer."""
    to, size = fill.piece.to * fill.itemsize, fill.piece.run * fill.itemsize
    return Straight(fill.file, _start(fill), fill.buffer.data[to : to + size], fill.front)


def _as_fill(x: Straight) -> Fill:
    piece = Piece("", 0, 0, (Loop(len(x.view), 1, 1),))
    buffer = np.frombuffer(x.view, np.uint8)
    return Fill(x.file, x.start_bytes, piece, _SAME, buffer, front=x.front)


def _gather_runs(folder: Folder, file: str, fills: Sequence[Fill]) -> int:
    runs = [runs_of(f.piece, f.itemsize, f.base_bytes) for f in fills]
    starts = np.concatenate([r.starts for r in runs])
    lengths = np.repeat([r.length for r in runs], [len(r.starts) for r in runs]).astype(np.int64)
    lo, hi = merge_runs(starts, lengths)
    first = np.searchsorted(lo, [r.starts[0] for r in runs], "right") - 1
    last = np.searchsorted(lo, [r.starts[-1] for r in runs], "right") - 1
    users = np.bincount(np.concatenate([first, last]), minlength=len(lo))
    shared: dict[int, list[Fill]] = {}
    apart: list[tuple[Fill, SourceRuns]] = []
    read = 0
    for fill, run, i, j in zip(fills, runs, first.tolist(), last.tolist(), strict=True):
        if i == j and not (users[i] == 2 and _is_direct(fill, run)):
            shared.setdefault(i, []).append(fill)
        elif run.outer and not _is_dense(fill, run):
            apart.append((fill, run))
        else:
            read += _read_runs(folder, file, fill, run)
    read += sum(_read_together(folder, file, group) for group in _overlapping(apart))
    stretches = ((int(lo[i]), int(hi[i]), group) for i, group in sorted(shared.items()))
    for some in in_steps(stretches, KEPT_BYTES, lambda each: each[1] - each[0]):
        read += _read_stretches(folder, file, some)
    return read


def _read_stretches(
    folder: Folder, file: str, stretches: Sequence[tuple[int, int, Sequence[Fill]]]
) -> int:
    """Read stretches of a file together, and move from each the copies that lie in it."""
    lengths = [stop - start for start, stop, _ in stretches]
    views = in_parts(_scratch_of(sum(lengths)), lengths)
    folder.read_each(
        file, [(start, x.data) for (start, _, _), x in zip(stretches, views, strict=True)]
    )
    for (start, _, group), view in zip(stretches, views, strict=True):
        for fill in group:
            scatter(fill, view, _start(fill) - start)
    return sum(lengths)


def _start(fill: Fill) -> int:
    """The first byte of its file that a copy reads."""
    return fill.base_bytes + fill.piece.at * fill.itemsize


def _scratch_of(count: int) -> Bytes:
    return _scratch.take(count) if count <= KEPT_BYTES else np.empty(count, np.uint8)


def _is_direct(fill: Fill, run: SourceRuns) -> bool:
    return run.length >= DIRECT_BYTES and not run.outer and _is_dense(fill, run)


def _is_dense(fill: Fill, run: SourceRuns) -> bool:
    """Whether each run is a stretch of the destination too, in the same element type."""
    inner = run.inner
    dense = not inner or (len(inner) == 1 and inner[0].at == 1 and inner[0].to == 1)
    return dense and fill.change.is_none


def _read_runs(folder: Folder, file: str, fill: Fill, run: SourceRuns) -> int:
    """Read a copy run by run."""
    itemsize = fill.itemsize
    to = fill.piece.to + grid(run.outer, "to", 1)
    if _is_dense(fill, run):
        view, length = fill.buffer.data, run.length
        places = zip(run.starts.tolist(), (to * itemsize).tolist(), strict=True)
        while some := list(islice(places, _AT_ONCE)):
            folder.read_each(file, [(start, view[at : at + length]) for start, at in some])
    else:
        scratch = _scratch_of(run.length)
        for start, at in zip(run.starts.tolist(), to.tolist(), strict=True):
            folder.read_into(file, start, scratch.data)
            part = Piece("", 0, at, run.inner)
            scatter(replace(fill, base_bytes=0, piece=part), scratch, 0)
    return run.length * len(run.starts)


def _overlapping(
    apart: Sequence[tuple[Fill, SourceRuns]],
) -> Iterator[list[tuple[Fill, SourceRuns]]]:
    """Copies in groups whose runs lie over each other, one by one."""
    alike: dict[Any, list[tuple[Fill, SourceRuns]]] = {}
    for fill, run in apart:
        key = fill.itemsize, *((loop.n, loop.at) for loop in run.outer)
        alike.setdefault(key, []).append((fill, run))
    for pairs in alike.values():
        group: list[tuple[Fill, SourceRuns]] = []
        end = 0
        for fill, run in sorted(pairs, key=lambda pair: int(pair[1].starts[0])):
            if group and run.starts[0] >= end:
                yield group
                group, end = [], 0
            group.append((fill, run))
            end = max(end, int(run.starts[0]) + run.length)
        yield group


def _read_together(folder: Folder, file: str, group: Sequence[tuple[Fill, SourceRuns]]) -> int:
    """Read the runs of copies that lie over each other, each once, and move all copies from there."""
    starts = group[0][1].starts
    start = int(starts[0])
    length = max(int(run.starts[0]) + run.length for _, run in group) - start
    needed = sum(fill.piece.size for fill, _ in group) * group[0][0].itemsize
    if len(starts) * length > _MOST_SCRATCH * needed:
        return sum(_read_runs(folder, file, fill, run) for fill, run in group)
    flat = _scratch_of(len(starts) * length)
    scratch = flat.reshape(len(starts), length)
    for k in range(0, len(starts), _AT_ONCE):
        some = zip(starts[k : k + _AT_ONCE].tolist(), scratch[k : k + _AT_ONCE], strict=True)
        folder.read_each(file, [(at, row.data) for at, row in some])
    for fill, run in group:
        outer = [prod([x.n for x in run.outer[k + 1 :]]) * length for k in range(len(run.outer))]
        inner = [loop.at * fill.itemsize for loop in run.inner]
        piece = Piece("", fill.piece.at, fill.piece.to, (*run.outer, *run.inner))
        first = int(run.starts[0]) - start
        scatter(replace(fill, piece=piece), flat, first, (*outer, *inner))
    return scratch.size
