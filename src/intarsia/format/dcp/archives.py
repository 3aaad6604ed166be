"""Chunks that are archives of torch, one after another in a data file: where their elements are, and their checksums."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import prod

import numpy as np

from intarsia.errors import FormatError
from intarsia.format.base import Around, Format, Located, Summed
from intarsia.format.dcp.data_files import metadata_of, safetensors_at
from intarsia.format.dcp.metadata import METADATA, TensorRecord
from intarsia.format.dcp.write import rank_of
from intarsia.format.torch_file.archive_end import Ending, ending_of
from intarsia.format.torch_file.torch_zip import (
    Payload,
    check_directory,
    find_payload,
    keeping_ends,
    read_crc,
    read_payload,
)
from intarsia.format.torch_file.zip_directory import ReadBytes, exactly
from intarsia.layout import Loop, Piece, whole_layout
from intarsia.planning.manifest import Chunk, Entry, Stored
from intarsia.store.reading.folder import Folder


class Archives(Format):
    """Formats whose chunks are archives of torch, each with a checksum, which `.metadata` lists."""

    header_files: tuple[str, ...] = (METADATA,)

    def locate(self, folder: Folder, stored: Stored, chunk: Chunk) -> Located:
        return locate(folder, stored, chunk)

    def front_kind(self, stored: Stored) -> Hashable:
        return "archive"

    def checksum(self, folder: Folder, chunk: Chunk) -> Summed | None:
        return recorded_checksum(folder, chunk)

    def around(self, folder: Folder, stored: Stored, chunk: Chunk) -> Around | None:
        located, summed = self.locate(folder, stored, chunk), self.checksum(folder, chunk)
        ending = _endings.get((chunk.length_bytes, located.front))
        start, size = chunk.start_bytes + len(located.front), chunk.box.size * stored.dtype.itemsize
        in_order = located.piece is None and located.start_bytes == start
        if ending is None or not in_order or summed is None or summed[:2] != (start, size):
            return None
        return Around(located.front, ending)

    def rank_of(self, file: str) -> int | None:
        return rank_of(file)

    def everything(self, folder: Folder) -> tuple[Mapping[str, Sequence[Chunk]], Sequence[Entry]]:
        metadata = metadata_of(folder, lambda complaint: None)
        chunks = {record.name: record.chunks for record in metadata.tensors.values()}
        return chunks, [*metadata.objects.values()]


def stored_record(record: TensorRecord) -> Stored:
    """A tensor of the metadata, as its own layout."""
    layout = whole_layout(record.name, record.shape)
    return Stored(record.name, record.dtype, layout, record.chunks, key=record.name)


def locate(folder: Folder, stored: Stored, chunk: Chunk) -> Located:
    """Find a chunk's elements inside its archive, and check them against the metadata."""
    where = f"{folder.root}/{chunk.file} byte {chunk.start_bytes:,} (`{stored.key}` {chunk.box})"
    alike = stored.dtype, chunk.box.shape
    try:
        payload = read_payload(_reads(folder, chunk), chunk.length_bytes, where, alike)
    except FormatError as error:
        if (found := safetensors_at(folder, chunk.file, chunk.start_bytes)) is not None:
            raise found from error
        raise
    if payload.dtype != stored.dtype or payload.shape != chunk.box.shape:
        raise FormatError(
            f"the metadata says {stored.dtype} {list(chunk.box.shape)}, the archive holds"
            f" {payload.dtype} {list(payload.shape)}",
            at=where,
            hint="the data file is another checkpoint's, or damaged",
            kind="chunk-mismatch",
        )
    start = chunk.start_bytes + payload.start_bytes + payload.storage_offset * stored.dtype.itemsize
    shape = payload.shape
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]  # of a contiguous tensor
    loops = [
        Loop(n, at, to) for n, at, to in zip(shape, payload.stride, strides, strict=True) if n > 1
    ]
    if all(loop.at == loop.to for loop in loops) or not prod(shape):
        return Located(start, front=payload.front)
    return Located(start, Piece("", 0, 0, tuple(loops)).canonical(), payload.front)


def recorded_checksum(folder: Folder, chunk: Chunk) -> Summed:
    """The bytes of a file that torch summed when it saved a chunk, with their CRC-32.

    Torch never looks at the sum again; it is None where torch was set not to compute it.
    """
    where = f"{folder.root / chunk.file} byte {chunk.start_bytes:,}"
    length = chunk.length_bytes
    read = keeping_ends(_reads(folder, chunk), length)
    payload = read_payload(read, length, where, chunk.box.shape)
    start, size = chunk.start_bytes + payload.start_bytes, payload.length_bytes
    known = _endings.get((length, payload.front))
    if known is not None:
        first = payload.start_bytes + size
        end = np.frombuffer(exactly(read, first, length - first, where), np.uint8)
        (sound,), (said,) = known.recorded(end[None])
        if sound:
            return Summed(start, size, int(said) or None)
    payload = find_payload(read, length, where)
    crc = read_crc(read, length, payload, where)
    check_directory(read, length, payload, crc, where)
    if known is None and payload.front:
        _learn(read, length, payload, where)
    return Summed(start, size, crc)


_KEPT = 4096
_endings: dict[tuple[int, bytes], Ending] = {}
"""How archives end, by their lengths and what they begin with: one of each was checked by its directory."""


def _learn(read: ReadBytes, length: int, payload: Payload, where: str) -> None:
    """Keep how an archive ends that was checked."""
    if (found := ending_of(read, length, payload, where)) is not None:
        if len(_endings) >= _KEPT:
            _endings.clear()
        _endings[length, payload.front] = found


def _reads(folder: Folder, chunk: Chunk) -> ReadBytes:
    """Reads of the bytes of a chunk, counted from its first."""
    return lambda at, size: folder.read(chunk.file, chunk.start_bytes + at, size)
