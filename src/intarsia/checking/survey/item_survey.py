"""The survey of one item: threads look at its stretches, and the last one puts together what they saw."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.alone.headers import is_there
from intarsia.checking.digests.sums import Summing
from intarsia.checking.fault import Fault
from intarsia.checking.survey.block_survey import (
    SUM_BYTES,
    Block,
    BlockSurvey,
    ChunkStretch,
    block_of,
    blocks_of,
    survey_block,
)
from intarsia.checking.survey.elements import is_plain
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checking.survey.items import SurveyItem
from intarsia.checking.survey.matrix_sums import MatrixSums
from intarsia.checking.survey.wrapped_chunks import KnownChunks
from intarsia.errors import IntarsiaError
from intarsia.format.base import Format, Located
from intarsia.frozen import frozen, frozen_open
from intarsia.kernel.surveying import CRC, PAGES
from intarsia.layout import clip
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored
from intarsia.planning.proof import prover_of
from intarsia.planning.proof.links import Links
from intarsia.planning.window import windows
from intarsia.run.gather import gather
from intarsia.run.located import locate_chunk
from intarsia.run.reads import Fill
from intarsia.run.room import Room
from intarsia.run.sums.checksum import crc32, crc32_of, full, join
from intarsia.run.sums.hashing import add_to
from intarsia.run.sums.runs import Run
from intarsia.state.names import MASTER, master_of, parameter_of
from intarsia.store.reading.folder import Folder
from intarsia.value import Change
from intarsia.value.bits import Bits, bits_dtype


@frozen
class ChunkPlace:
    """Where a chunk's elements are, and the bytes that its recorded checksum is of."""

    located: Located
    start_bytes: int
    length_bytes: int
    crc: int | None
    unsealed: bool
    together: bool
    """Whether the checksum is of the elements in row-major order, and nothing else."""


@frozen_open
class SurveyContext:
    """What the surveys of all items share.

    `block_bytes` are looked at in one go, `stretch_bytes` are summed in one call, and at most
    `most_sums` sums of one matrix are kept.  Of the logical tensors that are `wanted`, sums for their digests are taken.
    """

    manifest: Manifest
    format: Format
    folder: Folder
    block_bytes: int
    stretch_bytes: int
    most_sums: int
    wanted: Mapping[str, Logical]
    room: Room = field(default_factory=Room)
    room_for_chunks: Room = field(default_factory=Room)

    @cached_property
    def known_chunks(self) -> KnownChunks:
        """What lies around the elements of chunks that were checked."""
        return KnownChunks(self.format, self.folder)

    @cached_property
    def links(self) -> Links:
        """What is known of the manifest's own proof."""
        return prover_of(self.manifest).links

    def place_of(self, stored: Stored, chunk: Chunk) -> ChunkPlace:
        """Where a chunk of a stored tensor is."""
        located = locate_chunk(self.format, self.folder, stored, chunk)
        size = chunk.box.size * stored.dtype.itemsize
        start, length, crc, unsealed = located.start_bytes, size, None, False
        in_memory = chunk.file in self.manifest.in_memory_files
        saved = None if in_memory else self.format.checksum(self.folder, chunk)
        if saved is not None:
            start, length, crc = saved
            unsealed = crc is None and size > 0
        together = (start, length) == (located.start_bytes, size) and located.piece is None
        return ChunkPlace(located, start, length, crc, unsealed, together)


@dataclass(slots=True)
class _Part:
    """What one stretch showed: in `checksums` each CRC-32 in order, with the bytes that it is of."""

    stats: ItemStats
    checksums: list[tuple[int, int]]
    fault: IntarsiaError | None = None


class ItemSurvey:
    """One item while its stretches are looked at, by any thread."""

    def __init__(self, item: SurveyItem, context: SurveyContext, most_bytes: int) -> None:
        self.item, self._context = item, context
        self.stats = ItemStats(item)
        self._lock = threading.Lock()
        self._places: dict[int, ChunkPlace] = {}
        self._parts: dict[ChunkStretch, _Part] = {}
        self.stretches = tuple(self._cut(most_bytes))
        if not self.stretches:
            self._finish()

    def _cut(self, most_bytes: int) -> Iterator[ChunkStretch]:
        for number, chunk in enumerate(self.item.chunks):
            if not chunk.box.size:
                continue
            if is_there(self._context.manifest, chunk):
                size = self.item.stored.dtype.itemsize
                for box in windows(chunk.box.shape, size, most_bytes):
                    yield ChunkStretch(number, box)
            else:
                self.stats.lost += 1

    @cached_property
    def _matrix_sums(self) -> MatrixSums:
        return MatrixSums(self.item.units, self.item.stored.dtype, self._context.most_sums)

    def look(self, stretch: ChunkStretch) -> None:
        """Read a stretch; with the last one the item is done."""
        part = _Part(ItemStats(self.item), [])
        try:
            self._look(stretch, part)
        except IntarsiaError as error:
            error.raise_unless_fault()
            part.fault = error
        with self._lock:
            self._parts[stretch] = part
            last = len(self._parts) == len(self.stretches)
        if last:
            self._finish()

    def _look(self, stretch: ChunkStretch, part: _Part) -> None:
        context, chunk = self._context, self.item.chunks[stretch.number]
        with self._lock:
            matrix_sums, place = self._matrix_sums, self._place(stretch.number)
        if not place.together and not any(stretch.box.offsets):
            found = self._sum(chunk.file, place.start_bytes, place.length_bytes)
            part.checksums.append((found, place.length_bytes))
        summing = Summing(
            self.item, context.wanted, self._weights, stretch_bytes=context.stretch_bytes
        )
        summing.start(chunk)
        if self._look_in_file(stretch, part, matrix_sums, place, summing):
            return
        shape, itemsize = self.item.stored.shape, self.item.stored.dtype.itemsize
        for block in blocks_of(stretch.box, chunk.box, shape, itemsize, context.block_bytes):
            held = self._read(chunk, place.located, block)
            summed = summing.add(held, block.at)
            if place.together and place.crc is not None:
                crc = crc32(held) if summed is None else summed
                part.checksums.append((crc, held.nbytes))
            survey_block(part.stats, matrix_sums, block, held)
        part.stats.sums, part.stats.rounded = summing.sums, summing.rounded

    def _look_in_file(
        self,
        stretch: ChunkStretch,
        part: _Part,
        matrix_sums: MatrixSums,
        place: ChunkPlace,
        summing: Summing,
    ) -> bool:
        """Have the kernel read a stretch and look at it; False, and nothing noted, where it does not do that."""
        run, context, chunk = summing.run_of(), self._context, self.item.chunks[stretch.number]
        if place.located.piece is not None or run is None or not is_plain(self.item.stored.dtype):
            return False
        rows_bytes = SUM_BYTES * prod(stretch.box.shape[:-1])
        if rows_bytes > context.block_bytes or matrix_sums.coarse:
            return False
        block = block_of(stretch.box, chunk.box, self.item.stored.shape)
        survey = BlockSurvey(part.stats, matrix_sums, block)
        if survey.sums_bytes > context.block_bytes:
            return False
        (tensor, first), itemsize = run, self.item.stored.dtype.itemsize
        sealed = place.together and place.crc is not None
        wanted = PAGES if tensor else CRC if sealed else 0
        at = place.located.start_bytes + block.at * itemsize
        asked = survey.asked(at, wanted, (first + block.at) * itemsize)
        found = context.folder.survey(chunk.file, asked)
        if found is None or not survey.is_ordinary(found):
            return False
        survey.add(asked.matrices, found)
        for matrix, seen in zip(asked.matrices, found.seen, strict=True):
            if sealed:
                part.checksums.append((full(seen.crc, matrix.nbytes), matrix.nbytes))
            if tensor:
                of = Run(matrix.start, matrix.nbytes, context.wanted[tensor].nbytes)
                add_to(part.stats.sums, {tensor: of.sum(seen.pages, seen.crc)})
        return True

    def _place(self, number: int) -> ChunkPlace:
        if number not in self._places:
            chunk = self.item.chunks[number]
            self._places[number] = self._context.place_of(self.item.stored, chunk)
        return self._places[number]

    def _read(self, chunk: Chunk, located: Located, block: Block) -> Bits:
        """The elements of a block, in memory that this thread uses for its next one."""
        context, dtype = self._context, self.item.stored.dtype
        size, at = len(block.rows) * block.width, block.at
        buffer = context.room.take(size * dtype.itemsize)
        if located.piece is None:
            start = located.start_bytes + at * dtype.itemsize
            context.folder.read_into(chunk.file, start, buffer.data)
        else:
            held = clip(located.piece.flip(), at, at + size)
            pieces = (replace(p, at=p.at - at).flip() for p in held)
            start, same = located.start_bytes, Change(dtype, dtype)
            gather(context.folder, [Fill(chunk.file, start, p, same, buffer) for p in pieces])
        return buffer.view(bits_dtype(dtype)).reshape(len(block.rows), block.width)

    def _sum(self, file: str, start_bytes: int, length_bytes: int) -> int:
        view = partial(self._context.folder.view, file)
        return crc32_of(view, start_bytes, length_bytes, self._context.block_bytes)

    @cached_property
    def _weights(self) -> dict[str, Logical]:
        """The weights of one element type whose main weights the item holds, apart from them."""
        stored = self.item.stored
        if self.item.kinds != {MASTER} or not stored.dtype.floating or stored.value.parts:
            return {}
        wanted, logical = self._context.wanted, self._context.manifest.logical
        held = {
            name: wanted[name]
            for name in map(parameter_of, stored.layout.tensors)
            if name in wanted and wanted[name].shape == logical[master_of(name)].shape
        }
        types = {x.dtype for x in held.values()}
        return held if len(types) == 1 and all(t.floating for t in types) else {}

    def _finish(self) -> None:
        """Put together what the stretches showed, in their order."""
        item, stats = self.item, self.stats
        for number in dict.fromkeys(stretch.number for stretch in self.stretches):
            of_chunk = [s for s in self.stretches if s.number == number]
            parts = [self._parts[stretch] for stretch in of_chunk]
            for part in parts:
                stats.join(part.stats)
            stats.faults = (*stats.faults, *self._faults(number, parts))
        self._parts.clear()
        whole = sum(unit.rows * unit.columns for unit in item.units)
        if not stats.unread and whole == sum(chunk.box.size for chunk in item.chunks):
            stats.matrices = (*self._matrix_sums.facts(_padded(item.stored, self._matrix_sums)),)
        self.__dict__.pop("_matrix_sums", None)

    def _faults(self, number: int, parts: list[_Part]) -> Iterator[Fault]:
        """What is wrong with the bytes of a chunk; what it holds is noted where nothing is."""
        chunk, stored = self.item.chunks[number], self.item.stored
        names, size, files = _names(stored), chunk.box.size, (chunk.file,)
        error = next((part.fault for part in parts if part.fault is not None), None)
        if error is not None:
            where = f"{chunk.file} byte {chunk.start_bytes:,}"
            yield Fault(
                error.kind, names, where, error.brief, size, hint=error.hint or "", files=files
            )
            return
        place, found = self._places[number], 0
        self.stats.unsealed += place.unsealed
        for part in parts:
            for crc, length in part.checksums:
                found = join(found, crc, length)
        if place.crc is not None and found != place.crc:
            end = place.start_bytes + place.length_bytes
            text = f"CRC-32 {found:08x}, recorded {place.crc:08x} when it was saved"
            where = f"{chunk.file} bytes [{place.start_bytes:,}:{end:,})"
            yield Fault("checksum-wrong", names, where, text, size, files=files)
        total = sum(part.stats.total for part in parts) % (1 << 64)
        if not total:
            self.stats.zero_chunks = (*self.stats.zero_chunks, chunk)


def _padded(stored: Stored, matrix_sums: MatrixSums) -> NDArray[np.bool_] | None:
    """The sums of rows of a stored tensor that hold no element of any logical tensor."""
    if stored.layout.mapped == stored.layout.size or not stored.shape:
        return None
    width = max(stored.shape[-1], 1)
    pieces = stored.layout.pieces
    edges = np.array([(p.at // width, (p.at + p.span) // width) for p in pieces], np.int64)
    last = np.array([prod(stored.shape[:-1]) - 1], np.int64)
    marks = np.ones(int(matrix_sums.row_sums(last)[0]) + 1, np.bool_)
    for lo, hi in matrix_sums.row_sums(edges).tolist():
        marks[lo : hi + 1] = False
    return marks


def _names(stored: Stored) -> tuple[str, ...]:
    return stored.layout.tensors or (stored.on_disk,)
