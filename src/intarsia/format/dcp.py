"""`torch.distributed.checkpoint` folders: `.metadata`, and `__<rank>_<n>.distcp` files.

Each chunk of a tensor is a whole `torch.save` archive inside a `.distcp` file.  Its elements
are read in place, by their byte offsets; no pickle is executed and torch is not imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from intarsia.dtypes import DType
from intarsia.errors import FormatError
from intarsia.family import Param, Table
from intarsia.format.base import PAGE_BYTES, Arrangement, Located, Slot, WriteOptions
from intarsia.format.complaint import Complain, Complaint, going_on, refuse
from intarsia.format.dcp_metadata import (
    MAX_METADATA_BYTES,
    ChunkRecord,
    Metadata,
    ObjectRecord,
    TensorRecord,
    read_metadata,
)
from intarsia.format.dcp_metadata_write import write_metadata
from intarsia.format.names import entry_name, name_tensors
from intarsia.format.sides import config_of, side_files
from intarsia.format.torch_frame import Frame, frame
from intarsia.format.torch_zip import check_directory, read_crc, read_payload
from intarsia.layout import Layout, Loop, Piece
from intarsia.mesh import Box, Mesh, Rule, Shape
from intarsia.planning.manifest import Chunk, Entry, Manifest, Stored, Target
from intarsia.store.local import Folder

METADATA = ".metadata"
LINE_BYTES = 64


class Dcp:
    """The format `dcp`."""

    name = "dcp"
    dialects: tuple[str, ...] = ("hf", "same", "hf-module", "hf-fused")
    sharded = True
    carries_anything = True

    def detect(self, path: Path) -> bool:
        return (path / METADATA).is_file()

    def read(
        self, path: Path, config: Mapping[str, Any] | None, complain: Complain = refuse
    ) -> Manifest:
        with Folder(path) as folder:
            metadata = read_metadata(
                folder.read_all(METADATA, MAX_METADATA_BYTES), str(path / METADATA), complain
            )
            sizes = check_files(folder, metadata, complain)
        with going_on(complain, "config.json"):
            config = config or config_of(path)
        found = map(stored_of, metadata.tensors.values())
        named = name_tensors(found, config, str(path), complain)
        entries = (
            Entry(entry_name(o.name), o.file, o.start_bytes, o.length_bytes)
            for o in metadata.objects.values()
        )
        return Manifest(
            format=self.name,
            path=str(path),
            stored=named.stored,
            logical=named.logical,
            files=sizes,
            family=named.family,
            config=config,
            entries={entry.name: entry for entry in entries},
            sides=side_files(path),
            absent=named.absent,
            problems=named.problems,
            notes=named.notes,
        )

    def locate(self, folder: Folder, stored: Stored, chunk: Chunk) -> Located:
        return locate(folder, stored, chunk)

    def rows(self, table: Table, dialect: str, mesh: Mesh, spec: str) -> Sequence[Param]:
        return tuple(table.dialects[dialect].values())

    def spell(self, name: str) -> str:
        return spell(name)

    def arrange(self, targets: Sequence[Target], options: WriteOptions) -> Arrangement:
        return arrange(targets, options)


def spell(name: str) -> str:
    """A tensor's name as torch flattens state dicts: optimizer state by parameter, then kind.

    >>> spell("optimizer.exp_avg.model.norm.weight")
    'optimizer.state.model.norm.weight.exp_avg'
    """
    if not name.startswith("optimizer."):
        return name
    kind, _, param = name.removeprefix("optimizer.").partition(".")
    if not param or kind in ("state", "param_groups"):
        return name
    return f"optimizer.state.{param}.{kind}"


def stored_of(record: TensorRecord) -> Stored:
    """A tensor of the metadata, as its own layout."""
    chunks = tuple(
        Chunk(Box(c.offsets, c.shape), c.file, c.start_bytes, c.length_bytes) for c in record.chunks
    )
    layout = Layout.of(record.name, record.shape)
    return Stored(record.name, record.dtype, layout, chunks, key=record.name)


def check_files(folder: Folder, metadata: Metadata, complain: Complain = refuse) -> dict[str, int]:
    """The sizes of the data files; complain where one is absent or too short."""
    ends: dict[str, int] = {}
    held: dict[str, int] = {}
    claimed: dict[str, int] = {}
    for file, start, length in _extents(metadata):
        ends[file] = max(ends.get(file, 0), start + length)
        held[file] = held.get(file, 0) + 1
        claimed[file] = claimed.get(file, 0) + length
    absent = sorted(file for file in ends if not (folder.root / file).is_file())
    if absent:
        error = FormatError(
            f"{folder.root} lacks {len(absent)} of {len(ends)} data files"
            f" ({sum(held[f] for f in absent)} chunks): {', '.join(absent[:4])}",
            hint="restore the files, or use a complete checkpoint",
            kind="file-missing",
        )
        complain(Complaint(error, tuple(absent)))
    sizes = {file: folder.size(file) for file in sorted(ends) if file not in absent}
    for file, size in sizes.items():
        if size < ends[file]:
            error = FormatError(
                f"{folder.root / file} has {size:,} bytes, its chunks end at {ends[file]:,}",
                hint="the file is truncated: copy it again from its source",
                kind="file-too-short",
            )
            complain(Complaint(error, (file,)))
        elif size < claimed[file]:
            error = FormatError(
                f"{folder.root / file} has {size:,} bytes, its {held[file]:,} chunks have"
                f" {claimed[file]:,} together: some lie on one another",
                hint="the metadata is another checkpoint's, or damaged",
                kind="bytes-overlap",
            )
            complain(Complaint(error, (file,)))
    return sizes


def _extents(metadata: Metadata) -> Iterator[tuple[str, int, int]]:
    for tensor in metadata.tensors.values():
        for c in tensor.chunks:
            yield c.file, c.start_bytes, c.length_bytes
    for o in metadata.objects.values():
        yield o.file, o.start_bytes, o.length_bytes


def locate(folder: Folder, stored: Stored, chunk: Chunk) -> Located:
    """Find a chunk's elements inside its archive, and check them against the metadata."""
    where = f"{folder.root / chunk.file} byte {chunk.start_bytes:,} (`{stored.key}` {chunk.box})"

    def read(start_bytes: int, length_bytes: int) -> bytes:
        return folder.read(chunk.file, chunk.start_bytes + start_bytes, length_bytes)

    payload = read_payload(read, chunk.length_bytes, where)
    if payload.dtype != stored.dtype or payload.shape != chunk.box.shape:
        raise FormatError(
            f"the metadata says {stored.dtype} {list(chunk.box.shape)}, the archive holds"
            f" {payload.dtype} {list(payload.shape)} - at {where}",
            hint="the data file is another checkpoint's, or damaged",
            kind="chunk-mismatch",
        )
    start = chunk.start_bytes + payload.start_bytes + payload.storage_offset * stored.dtype.itemsize
    strides = row_major(payload.shape)
    loops = [
        Loop(n, at, to)
        for n, at, to in zip(payload.shape, payload.stride, strides, strict=True)
        if n > 1
    ]
    if all(loop.at == loop.to for loop in loops) or not prod(payload.shape):
        return Located(start)
    return Located(start, Piece("", 0, 0, tuple(loops)).canonical())


def sealed(folder: Folder, chunk: Chunk) -> tuple[int, int, int | None]:
    """The bytes of a file that torch summed when it saved a chunk, as `(start, length, CRC-32)`.

    Torch never looks at the sum again; it is None where torch was told not to take it.
    """
    where = f"{folder.root / chunk.file} byte {chunk.start_bytes:,}"

    def read(start_bytes: int, length_bytes: int) -> bytes:
        return folder.read(chunk.file, chunk.start_bytes + start_bytes, length_bytes)

    payload = read_payload(read, chunk.length_bytes, where)
    check_directory(read, chunk.length_bytes, payload, where)
    crc = read_crc(read, chunk.length_bytes, payload, where)
    return chunk.start_bytes + payload.start_bytes, payload.length_bytes, crc


def row_major(shape: Shape) -> Shape:
    """The strides of a contiguous tensor."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def arrange(targets: Sequence[Target], options: WriteOptions) -> Arrangement:
    """Give every box to one of the ranks that hold it, and lay each rank's file out in order."""
    held = ((t.name, t.dtype, t.shape, holders(options.mesh, t.shape, t.rule)) for t in targets)
    return lay_out(held, options.entries, options.mesh.size)


def lay_out(
    held: Iterable[tuple[str, DType, Shape, Mapping[Box, Sequence[int]]]],
    entries: Mapping[str, bytes],
    ranks: int,
) -> Arrangement:
    """The files of a checkpoint, from the ranks that hold each box of each tensor."""
    ends = [0] * ranks
    slots: dict[str, tuple[Slot, ...]] = {}
    tensors: dict[str, TensorRecord] = {}
    for tensor, dtype, shape, boxes in held:
        placed = []
        records = []
        for box, holding in boxes.items():
            rank = min(holding, key=lambda r: (ends[r], r))
            wrap: Frame = frame(dtype, box.shape)
            file, at = file_of(rank), aligned(ends[rank], wrap)
            placed.append(Slot(box, file, at + wrap.start_bytes, wrap))
            records.append(ChunkRecord(box.offsets, box.shape, file, at, wrap.length_bytes))
            ends[rank] = at + wrap.length_bytes
        slots[tensor] = tuple(placed)
        tensors[tensor] = TensorRecord(tensor, dtype, shape, tuple(records))
    fixed, objects = [], {}
    for name, data in sorted(entries.items()):
        objects[name] = ObjectRecord(name, file_of(0), ends[0], len(data))
        fixed.append((file_of(0), ends[0], data))
        ends[0] += len(data)
    files = {file_of(rank): end for rank, end in enumerate(ends) if end}
    paths = {name: (name,) for name in (*tensors, *objects)}
    closing = {METADATA: write_metadata(Metadata(tensors, objects, paths, {}))}
    return Arrangement(files, slots, fixed, closing)


def file_of(rank: int) -> str:
    """The file that a rank writes."""
    return f"__{rank}_0.distcp"


def aligned(end_bytes: int, wrap: Frame) -> int:
    """Where the next archive begins, so that large elements start at a page and small ones at a line.

    Readers go by the offsets of the metadata, so the gaps before archives mean nothing to them.
    """
    to = PAGE_BYTES if wrap.length_bytes >= 16 * PAGE_BYTES else LINE_BYTES
    return end_bytes + -(end_bytes + wrap.start_bytes) % to


@lru_cache(maxsize=1 << 14)
def holders(mesh: Mesh, shape: Shape, rule: Rule) -> Mapping[Box, list[int]]:
    """The ranks that hold each box of a tensor, computed once for every template."""
    return mesh.holders(shape, rule)
