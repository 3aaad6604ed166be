"""Sentences about where differences lie: rows and columns, blocks, flat ranges, files and their bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import intarsia
from intarsia.checking.diagnosis.where.whereabouts import DifferingChunk, Whereabouts
from intarsia.checkpoint import Checkpoint
from intarsia.layout import Layout
from tests.faults.statements.held import Held, Mask, differ_at, number

CUT = re.compile(r"block (\d+) of (\d+) on axis (\d+)")
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Stored:
    """Where the files of one side hold the elements of its tensors."""

    checkpoint: Checkpoint

    @staticmethod
    def open(path: str) -> Stored:
        return Stored(intarsia.open(path))

    @cached_property
    def files(self) -> Mapping[str, frozenset[str]]:
        """The files that hold a part of each tensor."""
        return {
            name: frozenset(
                c.file for s in stored for c in s.chunks if self._of(name, s.layout, c.box)[0].size
            )
            for name, stored in self.checkpoint.manifest.sources.items()
        }

    def within(self, name: str, files: set[str], shape: tuple[int, ...]) -> Mask:
        """The elements of a tensor that lie in some files."""
        out = np.zeros(prod(shape), bool)
        for stored in self.checkpoint.manifest.sources[name]:
            for chunk in stored.chunks:
                if chunk.file in files:
                    out[self._of(name, stored.layout, chunk.box)[1]] = True
        return out.reshape(shape)

    def _of(self, name: str, layout: Layout, box: intarsia.mesh.Box) -> tuple[Ints, Ints]:
        """Places of a chunk, and the elements of a tensor that lie there."""
        at, to = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for p in layout.box(box.offsets, box.shape).pieces:
            if p.tensor == name:
                here, there = np.array([p.at]), np.array([p.to])
                for loop in p.loops:
                    here = (here[:, None] + np.arange(loop.n) * loop.at).reshape(-1)
                    there = (there[:, None] + np.arange(loop.n) * loop.to).reshape(-1)
                at.append(here)
                to.append(there)
        return np.concatenate(at), np.concatenate(to)

    def chunk_is_untrue(self, name: str, spot: DifferingChunk, held: Held, differ: Mask) -> str:
        """What is wrong with what is said of one chunk."""
        for stored in self.checkpoint.manifest.sources[name]:
            for chunk in stored.chunks:
                if (
                    chunk.file == spot.file
                    and chunk.box == spot.box
                    and spot.tensor in (stored.key, stored.name)
                ):
                    at, to = self._of(name, stored.layout, chunk.box)
                    wrong = differ.reshape(-1)[to]
                    if (spot.held, spot.elements) != (len(to), int(wrong.sum())):
                        return f"{spot.held} and {spot.elements} elements told, {len(to)} and {int(wrong.sum())} found"
                    located = self.checkpoint.locate(stored, chunk)
                    if spot.start_bytes is None or located.piece is not None:
                        return ""
                    size = stored.dtype.itemsize
                    order = np.argsort(at[wrong])
                    places = located.start_bytes + at[wrong][order] * size
                    return _bytes_are_untrue(
                        self.path / chunk.file,
                        spot,
                        places,
                        size,
                        held.bits.reshape(-1)[to[wrong][order]],
                    )
        return f"no chunk {spot.file} {spot.tensor} {spot.box}"

    @property
    def path(self) -> Path:
        return Path(self.checkpoint.manifest.path)


def _bytes_are_untrue(
    file: Path, spot: DifferingChunk, places: Ints, size: int, bits: NDArray[np.generic]
) -> str:
    """The bytes told are those of the differing elements, and hold their bits."""
    breaks = np.flatnonzero(np.diff(places) != size) + 1
    runs = tuple((int(r[0]), int(r[-1]) + size) for r in np.split(places, breaks))
    if (spot.start_bytes, spot.end_bytes) != (runs[0][0], runs[-1][1]):
        return f"bytes {spot.start_bytes} to {spot.end_bytes} told, {runs[0][0]} to {runs[-1][1]} found"
    if spot.run_count != len(runs) or (spot.runs and spot.runs != runs):
        return f"{spot.run_count} runs {spot.runs} told, {len(runs)} {runs[:9]} found"
    if bits.dtype.itemsize == size and file.exists():
        raw = np.frombuffer(file.read_bytes(), np.uint8)
        stored = raw[places[:, None] + np.arange(size)].reshape(-1).view(bits.dtype)
        if "norm" not in spot.tensor and not np.array_equal(stored, bits):
            return "the bytes hold other numbers"
    return ""


def where_is_untrue(
    name: str, where: Whereabouts, x: Held, y: Held, a: Stored, b: Stored
) -> Iterator[str]:
    """Every index, count, file and byte of the whereabouts of a tensor's differences."""
    differ = differ_at(x, y)
    at = np.argwhere(differ)
    ends = tuple(int(k) for k in at[0]), tuple(int(k) for k in at[-1])
    if (where.first, where.last, where.elements) != (*ends, len(at)):
        yield f"{name}: place {where.first} to {where.last}, found {ends}"
    for axis, span in enumerate(where.differing.axes):
        held = np.unique(at[:, axis])
        if (span.first, span.end - 1, span.count) != (held[0], held[-1], len(held)):
            yield f"{name}: axis {axis} {span}"
        told = [k for lo, hi in span.ranges for k in range(lo, hi)]
        if told and told != held.tolist():
            yield f"{name}: axis {axis} ranges {span.ranges}"
    for differing, side, mine in ((where.a, a, x), (where.b, b, y)):
        for chunk in differing.chunks:
            if wrong := side.chunk_is_untrue(name, chunk, mine, differ):
                yield f"{name}: {chunk.file}: {wrong}"
        count = sum(chunk.elements for chunk in differing.chunks)
        if not differing.more and not differing.unseen and count != len(at):
            yield f"{name}: the chunks have {count} of {len(at)} differences"


def place_holds(text: str, differ: Mask) -> bool | None:
    """`12.5% of rows 3 to 5 and 9, columns 2 to 4`, or `all over the tensor`; None if it is no place."""
    if text == "all over the tensor":
        return bool(differ.mean() >= 0.75)
    found = re.fullmatch(r"(less than 0\.1%|[\d.]+%) of (.*)", text)
    if not found:
        return None
    held = [np.unique(x) for x in np.nonzero(differ)]
    told = dict(_axes(found[2]))
    for axis, mine in enumerate(held):
        some, numbers = told.pop(axis, (None, [*range(differ.shape[axis])]))
        if some is None and mine.tolist() != numbers:
            return False
        if some is not None and (len(mine), mine[0], mine[-1]) != (some, numbers[0], numbers[-1]):
            return False
    share = differ.sum() / prod(len(x) for x in held)
    printed = f"{share:.1%}" if share >= 0.0005 else "less than 0.1%"
    return not told and printed == found[1]


def _axes(text: str) -> Iterator[tuple[int, tuple[int | None, list[int]]]]:
    """The indices that are named on each axis, and how many of them, if not all."""
    if text == "the tensor":
        return
    for part in re.split(r", (?=[\d,]* ?(?:of )?(?:rows?|columns?|axis))", text):
        found = re.fullmatch(
            r"(?:([\d,]+) of )?(row|column|axis (\d+) ind(?:ex|ices))s? (.*)", part
        )
        assert found, part
        axis = int(found[3]) if found[3] else ("row", "column").index(found[2])
        numbers = []
        for run in found[4].split(" and "):
            lo, _, hi = run.partition(" to ")
            numbers += [*range(int(lo), int(hi or lo) + 1)]
        yield axis, (number(found[1]) if found[1] else None, numbers)


def block_holds(text: str, x: Held, y: Held) -> bool | None:
    """What is said of blocks and flat ranges, without its count; None for another kind of sentence."""
    differ = differ_at(x, y)
    if found := re.fullmatch(
        rf"({CUT.pattern}(?: and {CUT.pattern})*) (differs, the rest is equal|of (?:A|B) is .*)",
        text,
    ):
        cuts = [(int(r), int(p), int(a)) for r, p, a in CUT.findall(found[1])]
        inside = np.ones(x.shape, bool)
        for rank, parts, axis in cuts:
            inside &= _indices(x.shape, axis, *_block(x.shape[axis], rank, parts))
        if (differ & ~inside).any() or differ.sum() < 0.7 * inside.sum():
            return False
        return _content(found[found.lastindex or 0], cuts, x, y, differ)
    if found := re.fullmatch(
        r"(flat block (\d+) of (\d+)|the flat range of elements ([\d,]+) to ([\d,]+)) (differs, the rest is equal|of (?:A|B) is .*)",
        text,
    ):
        at = np.flatnonzero(differ)
        if found[2]:
            lo, n = _block(x.bits.size, int(found[2]), int(found[3]))
            if at[0] < lo or at[-1] >= lo + n or len(at) < 0.7 * n:
                return False
        elif (number(found[4]), number(found[5])) != (at[0], at[-1]):
            return False
        return _content(found[6], [], x, y, differ)
    return None


def _block(n: int, rank: int, parts: int) -> tuple[int, int]:
    step = -(-n // parts)
    lo = min(rank * step, n)
    return lo, min(lo + step, n) - lo


def _indices(shape: tuple[int, ...], axis: int, lo: int, n: int) -> Mask:
    index = np.arange(shape[axis])
    marks = (index >= lo) & (index < lo + n)
    return np.asarray(marks.reshape([-1 if k == axis else 1 for k in range(len(shape))]))


def _content(text: str, cuts: list[tuple[int, int, int]], x: Held, y: Held, differ: Mask) -> bool:
    if text == "differs, the rest is equal":
        return True
    found = re.fullmatch(
        r"of (A|B) is (zero where it differs|NaN where it differs|a copy of block (\d+))"
        r"(, but for bytes of the first element)?", text,
    )  # fmt: skip
    if not found:
        return False
    mine = y if found[1] == "B" else x
    if found[2].startswith("zero"):
        return bool((mine.numbers[differ][1 if found[4] else 0 :] == 0).all())
    if found[2].startswith("NaN"):
        return bool(np.isnan(mine.numbers[differ]).all())
    box = [slice(int(k.min()), int(k.max()) + 1) for k in np.nonzero(differ)]
    for rank, parts, axis in cuts:
        blocks = []
        for r in (rank, int(found[3])):
            lo, n = _block(x.shape[axis], r, parts)
            blocks.append(
                mine.bits[tuple(slice(lo, lo + n) if k == axis else s for k, s in enumerate(box))]
            )
        if blocks[0].shape == blocks[1].shape and np.array_equal(*blocks):
            return True
    return False
