"""What is stored and is no part of any logical tensor: copies, padding, objects that say nothing.

A loader may read it all the same, so its checksums are checked and its copies are compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np

from intarsia.checking.alone.entries import damaged_entry
from intarsia.checking.alone.headers import is_there
from intarsia.checking.fault import Fault
from intarsia.checkpoint import Checkpoint
from intarsia.errors import CoverageError, FormatError, IntarsiaError, few
from intarsia.format.base import Format
from intarsia.format.registry import folder_of, format_named
from intarsia.planning.manifest import Chunk, Entry, Manifest, Stored
from intarsia.planning.window import windows
from intarsia.run.budget import Budget
from intarsia.run.sums.checksum import crc32_of
from intarsia.store.reading.folder import Folder
from intarsia.value import PLAIN
from intarsia.value.bits import bits_dtype


def unmapped_faults(manifest: Manifest, budget: Budget) -> Iterator[Fault]:
    """Wrong checksums of what no logical tensor holds, and copies that are not equal."""
    format = format_named(manifest.format)
    with folder_of(manifest) as folder:
        try:
            tensors, entries = format.everything(folder)
        except FormatError:
            return  # reported by whoever read the headers
        some = manifest.stored.values() if tensors or entries else ()
        known = {id(s.chunks) for s in some}
        tensors = {name: chunks for name, chunks in tensors.items() if id(chunks) not in known}
        if tensors or entries:
            mapped = {(c.file, c.start_bytes) for s in some for c in s.chunks}
            mapped |= {(e.file, e.start_bytes) for e in manifest.entries.values()}
        for name, chunks in tensors.items():
            for chunk in chunks:
                if (chunk.file, chunk.start_bytes) not in mapped and is_there(manifest, chunk):
                    yield from _wrong_chunk(format, folder, name, chunk, budget)
        for entry in entries:
            if (entry.file, entry.start_bytes) not in mapped:
                yield from damaged_entry(folder, entry)
    yield from copies_that_differ(manifest, budget)


def notes_on_ends(manifest: Manifest) -> Iterator[str]:
    """Files that go on after all that their metadata says of them, as another save's may."""
    ends: dict[str, int] = {}
    with folder_of(manifest) as folder:
        try:
            tensors, entries = format_named(manifest.format).everything(folder)
        except FormatError:
            return  # reported by whoever read the headers
    held: Iterator[Chunk | Entry] = chain(chain.from_iterable(tensors.values()), entries)
    for part in held:
        ends[part.file] = max(ends.get(part.file, 0), part.start_bytes + part.length_bytes)
    beyond = {file: manifest.files.get(file, 0) - end for file, end in ends.items()}
    if over := {file: extra for file, extra in beyond.items() if extra > 0}:
        yield (
            f"{sum(over.values()):,} bytes lie after the last chunk of {few(sorted(over), 4)}: the metadata"
            " says nothing of them, and the file may be another save's"
        )


def _wrong_chunk(
    format: Format, folder: Folder, name: str, chunk: Chunk, budget: Budget
) -> Iterator[Fault]:
    if not chunk.box.size:
        return
    try:
        summed = format.checksum(folder, chunk)
        if summed is None:
            return
        start, length, crc = summed
        found = crc32_of(partial(folder.read, chunk.file), start, length, budget.window_bytes)
    except IntarsiaError as error:
        where = f"{chunk.file} byte {chunk.start_bytes:,}"
        kind, text, hint = error.kind, error.brief, error.hint or ""
    else:
        if crc is None or found == crc:
            return
        where = f"{chunk.file} bytes [{start:,}:{start + length:,})"
        kind, text = "checksum-wrong", f"CRC-32 {found:08x}, recorded {crc:08x} when it was saved"
        text, hint = f"{text}; no logical tensor holds it", ""
    yield Fault(kind, (name,), where, text, chunk.box.size, hint, (chunk.file,))


def copies_that_differ(manifest: Manifest, budget: Budget) -> Iterator[Fault]:
    """Copies of state, on other ranks than the one that is read, that hold other numbers."""
    if not manifest.copies:
        return
    # Copies are compared as they lie, whatever is stored for a number.
    lying = {
        name: s if s.value.is_plain else replace(s, value=PLAIN)
        for name, s in manifest.stored.items()
    }
    with Checkpoint(replace(manifest, stored=lying)) as checkpoint:
        for copy in manifest.copies:
            try:
                count = sum(_unequal(checkpoint, copy, c, budget) for c in copy.chunks)
            except (FormatError, CoverageError):
                continue  # reported elsewhere
            if count:
                files = tuple(sorted({c.file for c in copy.chunks}))
                text = (
                    f"{count:,} of {copy.layout.size:,} elements of the copy `{copy.name}` are not"
                    " those of the one that is read"
                )
                names = copy.layout.tensors
                yield Fault("copies-differ", names, ", ".join(files), text, count, files=files)


def _unequal(checkpoint: Checkpoint, copy: Stored, chunk: Chunk, budget: Budget) -> int:
    located = checkpoint.locate(copy, chunk)
    size = copy.dtype.itemsize
    if located.piece is not None:
        return 0
    proven = checkpoint.prove(copy.name, copy.layout, copy.dtype)
    folder, count, done = folder_of(checkpoint.manifest), 0, 0
    with folder:
        for part in windows(chunk.box.shape, size, budget.window_bytes // 4):
            box = part.moved(chunk.box.offsets)
            held = checkpoint.read_box(proven, box)
            start = located.start_bytes + done * size
            raw = np.frombuffer(folder.read(chunk.file, start, part.size * size), np.uint8)
            if not np.array_equal(held, raw):
                kind = bits_dtype(copy.dtype)
                count += int(np.count_nonzero(held.view(kind) != raw.view(kind)))
            done += part.size
    return count
