"""Chunks that are archives of torch, one after another in a data file: where their elements are, and their checksums."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod

from intarsia.errors import FormatError
from intarsia.format.base import Format, Located, Summed
from intarsia.format.dcp.data_files import metadata_of
from intarsia.format.dcp.metadata import METADATA, TensorRecord
from intarsia.format.dcp.write import rank_of
from intarsia.format.torch_file.torch_zip import (
    check_directory,
    keeping_ends,
    read_crc,
    read_payload,
)
from intarsia.format.torch_file.zip_directory import Read
from intarsia.layout import Layout, Loop, Piece
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

    def rank_of(self, file: str) -> int | None:
        return rank_of(file)

    def everything(self, folder: Folder) -> tuple[Sequence[tuple[str, Chunk]], Sequence[Entry]]:
        metadata = metadata_of(folder, lambda complaint: None)
        chunks = [(r.name, c) for r in metadata.tensors.values() for c in r.chunks]
        return chunks, [*metadata.objects.values()]


def stored_of(record: TensorRecord) -> Stored:
    """A tensor of the metadata, as its own layout."""
    layout = Layout.of(record.name, record.shape)
    return Stored(record.name, record.dtype, layout, record.chunks, key=record.name)


def locate(folder: Folder, stored: Stored, chunk: Chunk) -> Located:
    """Find a chunk's elements inside its archive, and check them against the metadata."""
    where = f"{folder.root}/{chunk.file} byte {chunk.start_bytes:,} (`{stored.key}` {chunk.box})"
    alike = stored.dtype, chunk.box.shape
    payload = read_payload(_reads(folder, chunk), chunk.length_bytes, where, alike)
    if payload.dtype != stored.dtype or payload.shape != chunk.box.shape:
        raise FormatError(
            f"the metadata says {stored.dtype} {list(chunk.box.shape)}, the archive holds"
            f" {payload.dtype} {list(payload.shape)} - at {where}",
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
    read = keeping_ends(_reads(folder, chunk), chunk.length_bytes)
    payload = read_payload(read, chunk.length_bytes, where)
    crc = read_crc(read, chunk.length_bytes, payload, where)
    check_directory(read, chunk.length_bytes, payload, crc, where)
    return Summed(chunk.start_bytes + payload.start_bytes, payload.length_bytes, crc)


def _reads(folder: Folder, chunk: Chunk) -> Read:
    """Reads of the bytes of a chunk, counted from its first."""
    return lambda at, size: folder.read(chunk.file, chunk.start_bytes + at, size)
