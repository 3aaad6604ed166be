"""A checkpoint to read from: which bytes of which files fill a box of what is proven."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby
from typing import NamedTuple

import numpy as np

from intarsia.errors import CoverageError
from intarsia.format.base import Format, Located
from intarsia.layout import Layout, meet
from intarsia.mesh import Box
from intarsia.planning.copy import Copy, copies_into
from intarsia.planning.manifest import Chunk, Manifest, Stored
from intarsia.planning.proof import Proven
from intarsia.run.gather import gather, read_fronts
from intarsia.run.located import locate_chunk
from intarsia.run.losses import Losses, LossWatch
from intarsia.run.reads import Fill, Front, PartBytes, Straight
from intarsia.run.room import Bytes
from intarsia.store.reading.folder import Folder
from intarsia.value import Change

_NO_PARTS: Mapping[str, PartBytes] = {}


class Begins(NamedTuple):
    """The files of chunks, and the bytes of those at which their elements begin, row-major, if they have `fronts`:
    the number of a chunk, a byte of its file, and what has to be there."""

    files: Sequence[str]
    starts: Sequence[int]
    fronts: Sequence[tuple[int, int, bytes]]


@dataclass
class Source:
    """A checkpoint to read from: its manifest, its files, and where its chunks' elements are."""

    manifest: Manifest
    format: Format
    folder: Folder
    losses: Losses = field(default_factory=Counter)
    _located: dict[tuple[str, int], Located] = field(default_factory=dict)
    _fronts: dict[Hashable, tuple[int, bytes]] = field(default_factory=dict)
    """What the last chunk of each kind, element type, shape and length began with, and where in it its
    elements are, where they are in row-major order."""

    @cached_property
    def is_plain(self) -> bool:
        """Whether each chunk is its elements in row-major order and nothing else."""
        return type(self.format).locate is Format.locate

    def fill_box(self, proven: Proven, box: Box, buffer: Bytes) -> list[Fill | Straight]:
        """The reads that fill the row-major buffer of a box of a target; padding is zeroed."""
        within = partial(proven.target.layout.box, box.offsets, box.shape)
        return self._fill(proven, proven.copies(box), within, box, buffer)

    def fill_stretch(
        self, proven: Proven, box: Box, start: int, buffer: Bytes
    ) -> list[Fill | Straight]:
        """The reads that fill a box whose elements, row-major, follow each other from `start` on."""
        stop = start + box.size

        def within() -> Layout:
            return proven.target.layout.reshape(-1).narrow(0, start, stop)

        return self._fill(proven, proven.stretch(start, stop), within, box, buffer)

    def _fill(
        self,
        proven: Proven,
        copies: Sequence[Copy],
        within: Callable[[], Layout],
        box: Box,
        buffer: Bytes,
    ) -> list[Fill | Straight]:
        target = proven.target
        if proven.src is not self.manifest or len(buffer) != box.size * target.dtype.itemsize:
            raise CoverageError(
                f"`{target.name}` is proven of {proven.src.path}, for {box.size:,} {target.dtype} elements;"
                f" {len(buffer):,} bytes are to be read from {self.manifest.path}"
            )
        held = sum([copy.piece.run or copy.piece.size for copy in copies])
        if held < box.size:
            if held != (wanted := within().mapped):
                raise CoverageError(f"{held:,} of {wanted:,} elements of `{target.name}` are read")
            buffer[:] = 0  # padding
        watch = LossWatch(target, box, self.losses)
        found: list[Fill | Straight] = []
        for _, group in groupby(copies, _value_of if self.is_plain else _id_of):
            of_one = list(group)
            stored = of_one[0].stored
            change = Change(stored.dtype, target.dtype, stored.value, target.value)
            names = stored.value.parts
            parts = self._parts_for(names, within()) if names else _NO_PARTS
            found += self._reads(stored, of_one, change, buffer, watch, parts)
        return found

    def _reads(
        self,
        stored: Stored,
        copies: Iterable[Copy],
        change: Change,
        buffer: Bytes,
        watch: LossWatch | None = None,
        parts: Mapping[str, PartBytes] = _NO_PARTS,
    ) -> list[Fill | Straight]:
        """The reads of copies of a stored tensor, each from where its elements are, or are expected."""
        kind, memory, size = self.format.front_kind(stored), buffer.data, change.src.itemsize
        is_none, reads = change.is_none, list[Fill | Straight]()
        for copy in copies:
            chunk, piece, known = copy.chunk, copy.piece, None
            if is_none and self.is_plain and (count := piece.run):
                view = memory[piece.to * size : (piece.to + count) * size]
                reads.append(Straight(chunk.file, chunk.start_bytes + piece.at * size, view))
                continue
            # What a chunk begins with is read with its first elements, beside which it lies.
            if kind is not None and not piece.at:
                known = self._fronts.get(_alike(kind, stored, chunk))
            if known is None or (chunk.file, chunk.start_bytes) in self._located:
                reads += self._located_reads(copy, change, buffer, watch, parts)
                continue
            start, located = chunk.start_bytes, self._located_reads
            front = Front(start, known[1], partial(located, copy, change, buffer, watch, parts))
            start += known[0]
            if is_none and (count := piece.run):
                view = memory[piece.to * size : (piece.to + count) * size]
                reads.append(Straight(chunk.file, start, view, front))
            else:
                fill = Fill(chunk.file, start, piece, change, buffer, watch, parts, front)
                reads.append(fill)
        return reads

    def _located_reads(
        self,
        copy: Copy,
        change: Change,
        buffer: Bytes,
        watch: LossWatch | None,
        parts: Mapping[str, PartBytes],
    ) -> Iterator[Fill]:
        """The reads of a copy from where its elements are, in the order of the file."""
        found = self.locate(copy.stored, copy.chunk)
        pieces = [copy.piece] if found.piece is None else meet(found.piece.flip(), copy.piece)
        for piece in pieces:
            yield Fill(copy.chunk.file, found.start_bytes, piece, change, buffer, watch, parts)

    def _parts_for(self, names: Iterable[str], layout: Layout) -> dict[str, PartBytes]:
        """What the parts of values hold for each place of a buffer with `layout`."""
        found = dict[str, PartBytes]()
        for name in names:
            part = self.manifest.parts[name]
            same = Change(part.dtype, part.dtype)
            buffer = np.zeros(layout.size * part.dtype.itemsize, np.uint8)
            copies = copies_into(layout, Box.whole(layout.shape), (part,))
            gather(self.folder, self._reads(part, copies, same, buffer))
            found[name] = buffer, part.dtype
        return found

    def begins(self, stored: Stored, chunks: Sequence[Chunk]) -> Begins | None:
        """Where the elements of chunks begin in their files, or are expected to; None where one of the chunks
        has them in another order."""
        files = [chunk.file for chunk in chunks]
        if self.is_plain:
            return Begins(files, [chunk.start_bytes for chunk in chunks], ())
        kind = self.format.front_kind(stored)
        starts, fronts = [chunk.start_bytes for chunk in chunks], list[tuple[int, int, bytes]]()
        if kind is not None and len({(c.box.shape, c.length_bytes) for c in chunks}) == 1:
            known = self._fronts.get(_alike(kind, stored, chunks[0]))
            places = zip(files, starts, strict=True)
            if known is not None and self._located.keys().isdisjoint(places):
                within, front = known
                each = [(number, at, front) for number, at in enumerate(starts)]
                return Begins(files, [at + within for at in starts], each)
        starts = []
        alike: Hashable = None
        expected: tuple[int, bytes] | None = None
        for number, chunk in enumerate(chunks):
            start, located = chunk.start_bytes, self._located.get((chunk.file, chunk.start_bytes))
            if located is None and kind is not None:
                mine = chunk.box.shape, chunk.length_bytes
                if alike != mine:
                    alike, expected = mine, self._fronts.get(_alike(kind, stored, chunk))
                if expected is not None:
                    starts.append(start + expected[0])
                    fronts.append((number, start, expected[1]))
                    continue
                alike = None
            located = located or self.locate(stored, chunk)
            if located.piece is not None:
                return None
            starts.append(located.start_bytes)
        return Begins(files, starts, fronts)

    def locate(self, stored: Stored, chunk: Chunk) -> Located:
        """Where a chunk's elements are in its file, in whatever order."""
        key = (chunk.file, chunk.start_bytes)
        found = self._located.get(key)
        if found is None:
            found = locate_chunk(self.format, self.folder, stored, chunk)
            self._located[key] = found
            if found.front and found.piece is None:
                alike = _alike(self.format.front_kind(stored), stored, chunk)
                self._fronts[alike] = found.start_bytes - chunk.start_bytes, found.front
        return found

    def front_of(self, stored: Stored, chunk: Chunk) -> tuple[int, bytes] | None:
        """Where in chunks like this one the elements begin, row-major, if those begin with the same, and with what.

        None where they are in another order, or nothing that they begin with decides it.
        """
        if self.is_plain:
            return 0, b""
        kind = self.format.front_kind(stored)
        if kind is None:
            return None
        alike = _alike(kind, stored, chunk)
        if alike not in self._fronts:
            self.locate(stored, chunk)
        return self._fronts.get(alike)

    def begins_near(self, wanted: Sequence[tuple[Stored, Chunk]]) -> list[int | None]:
        """Where the elements of each chunk begin in its file, what all begin with being looked at by one call.

        None where they are in another order, or cannot be moved from there.
        """
        can_move = {file: self.folder.can_move(file) for file in {x.file for _, x in wanted}}
        if self.is_plain:
            return [x.start_bytes if can_move[x.file] else None for _, x in wanted]
        # Sources whose files are plain need none of it.
        from intarsia.kernel.comparing import NO_FILE
        from intarsia.store.reading.comparing import Addresses, RunPairs, equal_runs

        found, runs, held = list[int | None](), RunPairs(), Addresses()
        for _, group in groupby(wanted, lambda each: id(each[0])):
            each = list(group)
            begins = self.begins(each[0][0], [chunk for _, chunk in each])
            if begins is None:
                found += map(self._start, each)
                continue
            found += begins.starts
            lengths = [len(front) for _, _, front in begins.fronts]
            runs.left.files += [runs.left.names[begins.files[k]] for k, _, _ in begins.fronts]
            runs.left.at += [at for _, at, _ in begins.fronts]
            runs.right.at += [held[front] for _, _, front in begins.fronts]
            runs.right.files += [NO_FILE] * len(lengths)
            for lists in (runs.left.steps, runs.right.steps, runs.row_bytes):
                lists += lengths
            runs.rows += [1] * len(lengths)
        sides, shape = (runs.left.side(), runs.right.side()), (runs.rows, runs.row_bytes)
        columns = (np.array(x, np.int64) for x in shape)
        if len(runs) and equal_runs(self.folder, self.folder, *sides, *columns) < len(runs):
            found = [*map(self._start, wanted)]
        each_of = zip(found, wanted, strict=True)
        return [start if can_move[chunk.file] else None for start, (_, chunk) in each_of]

    def _start(self, each: tuple[Stored, Chunk]) -> int | None:
        """Where the elements of a chunk begin in its file; None where they are in another order."""
        found = self.locate(*each)
        return found.start_bytes if found.piece is None else None

    def locate_near(self, file: str, wanted: Iterable[tuple[Stored, Chunk]]) -> None:
        """Look at what chunks of a file begin with by one call, and know those that begin as others did."""
        expected: dict[Front, int] = {}
        for stored, chunk in wanted:
            kind = self.format.front_kind(stored)
            if kind is None or (file, chunk.start_bytes) in self._located:
                continue
            if (known := self._fronts.get(_alike(kind, stored, chunk))) is not None:
                expected[Front(chunk.start_bytes, known[1])] = known[0]
            else:
                self.locate(stored, chunk)
        unlike = set[Front]()
        read_fronts(self.folder, file, [*expected], unlike)
        for front, within in expected.items():
            if front not in unlike:
                start = front.start_bytes
                self._located[file, start] = Located(start + within, front=front.data)


def _id_of(copy: Copy) -> Hashable:
    return id(copy.stored)


def _value_of(copy: Copy) -> Hashable:
    """What stored tensors have in common that are read alike, where nothing lies before their elements."""
    stored = copy.stored
    return stored.dtype.name, id(stored.value)


def _alike(kind: Hashable, stored: Stored, chunk: Chunk) -> Hashable:
    """What chunks have in common whose elements are at one place in them if they begin with the same."""
    return kind, stored.dtype, chunk.box.shape, chunk.length_bytes
