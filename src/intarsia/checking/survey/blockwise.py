"""One pass over the bytes of a checkpoint, for everything that is checked of its content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.alone.headers import is_there
from intarsia.checking.digests.sums import Summing
from intarsia.checking.fault import Fault
from intarsia.checking.survey.items import Item, items_of
from intarsia.checking.survey.seen import Seen, look
from intarsia.checking.survey.sketch import Sketch
from intarsia.dtypes import DType
from intarsia.errors import IntarsiaError
from intarsia.format.base import Format, Located
from intarsia.format.registry import folder_of, format_named
from intarsia.layout import clip
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored
from intarsia.run.budget import Budget
from intarsia.run.gather import Fill, gather
from intarsia.run.located import locate_chunk
from intarsia.run.progress import Progress
from intarsia.run.sharing import share_out
from intarsia.run.sums.checksum import crc32, join
from intarsia.state.names import MASTER, master_of, parameter_of
from intarsia.store.folder import Folder
from intarsia.value import Change
from intarsia.value.bits import Bits, as_float64, bits_dtype

_ROW_BYTES = 32


def survey(
    manifest: Manifest,
    budget: Budget,
    progress: Progress | None = None,
    wanted: Mapping[str, Logical] | None = None,
) -> list[Seen]:
    """Read every chunk once, on the budget's threads, and say what was seen.

    Of the logical tensors that are `wanted`, the sums for their digests are taken too.
    """
    items = items_of(manifest)
    # A block is cast and summed in wider types: its temporaries take several times its bytes.
    window = max(1 << 16, budget.window_bytes // 8)
    # As much again is left for what the sums tell.
    sums = budget.memory_bytes // (2 * 8 * budget.workers)
    with folder_of(manifest) as folder:
        return share_out(
            items,
            budget.workers,
            lambda item: _Reader(manifest, folder, window, sums, wanted or {}).see(item),
            progress=progress,
            nbytes=lambda item: item.nbytes,
        )


@dataclass
class _Reader:
    manifest: Manifest
    folder: Folder
    window_bytes: int
    most_sums: int
    wanted: Mapping[str, Logical]

    def see(self, item: Item) -> Seen:
        seen, stored = Seen(item), item.stored
        summing = Summing(item, self.wanted, self._weights(item))
        sketch = Sketch(item.units, stored.dtype, self.most_sums)
        format = format_named(self.manifest.format)
        for chunk in item.chunks:
            if not chunk.box.size:
                continue
            if not is_there(self.manifest, chunk):
                seen.lost += 1
                continue
            summing.start(chunk)
            try:
                self._chunk(seen, sketch, format, chunk, summing)
            except IntarsiaError as error:
                error.raise_unless_fault()
                where = f"{chunk.file} byte {chunk.start_bytes:,}"
                names, size, files = _names(stored), chunk.box.size, (chunk.file,)
                seen.faults.append(Fault(error.kind, names, where, error.brief, size, files=files))
        whole = sum(unit.rows * unit.columns for unit in item.units)
        seen.sums, seen.rounded = summing.sums, summing.rounded
        if not seen.unread and whole == sum(chunk.box.size for chunk in item.chunks):
            seen.portraits = sketch.portraits(_padded(stored, sketch))
            if stored.layout.size == 1 and seen.value is None:
                bits = np.array([seen.total], np.uint64).astype(bits_dtype(stored.dtype))
                seen.value = float(as_float64(bits, stored.dtype).real[0])
        return seen

    def _weights(self, item: Item) -> dict[str, Logical]:
        """The weights of one element type whose main weights the item holds, apart from them."""
        if item.kinds != {MASTER} or not item.stored.dtype.floating:
            return {}
        names = map(parameter_of, item.stored.layout.tensors)
        held = {
            name: self.wanted[name]
            for name in names
            if name in self.wanted and self.wanted[name].shape == self._master(name).shape
        }
        types = {x.dtype for x in held.values()}
        return held if len(types) == 1 and all(t.floating for t in types) else {}

    def _master(self, weight: str) -> Logical:
        return self.manifest.logical[master_of(weight)]

    def _chunk(
        self,
        seen: Seen,
        sketch: Sketch,
        format: Format,
        chunk: Chunk,
        summing: Summing,
    ) -> None:
        stored = seen.item.stored
        located = locate_chunk(format, self.folder, stored, chunk)
        size = chunk.box.size * stored.dtype.itemsize
        start, length, crc = located.start_bytes, size, None
        told = chunk.file in self.manifest.in_memory_files
        saved = None if told else format.checksum(self.folder, chunk)
        if saved is not None:
            start, length, crc = saved
            seen.unsealed += crc is None and size > 0
        together = (start, length) == (located.start_bytes, size) and located.piece is None
        found, before = 0, seen.total
        if together:
            for block, rows, column, at in self._blocks(chunk, stored, located):
                summed = summing.add(block, at)
                found = crc32(block, found) if summed is None else join(found, summed, block.nbytes)
                look(seen, sketch, block, rows, column)
        else:
            found = self._sum(chunk.file, start, length)
            for block, rows, column, at in self._blocks(chunk, stored, located):
                summing.add(block, at)
                look(seen, sketch, block, rows, column)
        if crc is not None and found != crc:
            text = f"CRC-32 {found:08x}, recorded {crc:08x} when it was saved"
            where = f"{chunk.file} bytes [{start:,}:{start + length:,})"
            names, size, files = _names(stored), chunk.box.size, (chunk.file,)
            seen.faults.append(Fault("checksum-wrong", names, where, text, size, files=files))
        seen.marks[chunk] = (found, seen.total == before)

    def _blocks(
        self, chunk: Chunk, stored: Stored, located: Located
    ) -> Iterator[tuple[Bits, NDArray[np.int64], int, int]]:
        """The elements of a chunk in row-major order, in blocks of whole rows or parts of one.

        With each come its rows and first column in the tensor, and its first place in the chunk.
        """
        itemsize, box = stored.dtype.itemsize, chunk.box
        width = box.shape[-1] if box.shape else 1
        first = box.offsets[-1] if box.shape else 0
        count = box.size // width
        # Beside its elements a row has a number, an owner and sums.
        rows_at_once = max(1, self.window_bytes // (width * itemsize + _ROW_BYTES))
        columns_at_once = max(1, min(width, self.window_bytes // itemsize))
        for lo in range(0, count, rows_at_once):
            rows = _rows_of(box, stored.shape, lo, min(lo + rows_at_once, count))
            for column in range(0, width, columns_at_once):
                n = min(columns_at_once, width - column) if len(rows) == 1 else width
                block = np.empty(len(rows) * n, bits_dtype(stored.dtype))
                at = lo * width + column
                self._read(chunk.file, stored.dtype, located, at, block)
                yield block.reshape(len(rows), n), rows, first + column, at

    def _read(self, file: str, dtype: DType, located: Located, at: int, block: Bits) -> None:
        """Fill a block with elements of a chunk, in row-major order from number `at` on."""
        buffer = block.view(np.uint8)
        if located.piece is None:
            start = located.start_bytes + at * dtype.itemsize
            self.folder.read_into(file, start, buffer.data)
            return
        held = clip(located.piece.flip(), at, at + block.size)
        pieces = (replace(p, at=p.at - at).flip() for p in held)
        start, same = located.start_bytes, Change(dtype, dtype)
        gather(self.folder, [Fill(file, start, p, same, buffer) for p in pieces])

    def _sum(self, file: str, start_bytes: int, length_bytes: int) -> int:
        found = 0
        for at in range(0, length_bytes, self.window_bytes):
            size = min(self.window_bytes, length_bytes - at)
            found = crc32(self.folder.read(file, start_bytes + at, size), found)
        return found


def _rows_of(box: Box, shape: tuple[int, ...], lo: int, hi: int) -> NDArray[np.int64]:
    """The rows of a tensor that rows `[lo, hi)` of a box of it are."""
    rest, ids, stride = np.arange(lo, hi, dtype=np.int64), np.zeros(hi - lo, np.int64), 1
    for o, n, size in zip(box.offsets[-2::-1], box.shape[-2::-1], shape[-2::-1], strict=True):
        rest, inside = np.divmod(rest, n)
        ids += (o + inside) * stride
        stride *= size
    return ids


def _padded(stored: Stored, sketch: Sketch) -> NDArray[np.bool_] | None:
    """The sums of rows of a stored tensor that hold no element of any logical tensor."""
    if stored.layout.mapped == stored.layout.size or not stored.shape:
        return None
    width = max(stored.shape[-1], 1)
    pieces = stored.layout.pieces
    edges = np.array([(p.at // width, (p.at + p.span) // width) for p in pieces], np.int64)
    last = np.array([prod(stored.shape[:-1]) - 1], np.int64)
    marks = np.ones(int(sketch.row_sums(last)[0]) + 1, np.bool_)
    for lo, hi in sketch.row_sums(edges).tolist():
        marks[lo : hi + 1] = False
    return marks


def _names(stored: Stored) -> tuple[str, ...]:
    return stored.layout.tensors or (stored.key or stored.name,)


def surveyed(found: Sequence[Seen]) -> tuple[int, int]:
    """How many tensors were seen whole, and how many elements."""
    held, lost = set[str](), set[str]()
    for seen in found:
        for s in seen.item.names:
            (lost if seen.lost else held).update(s.layout.tensors or (s.name,))
    elements = sum(c.box.size for seen in found if not seen.lost for c in seen.item.chunks)
    return len(held - lost), elements
