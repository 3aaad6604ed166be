"""The objects beside a checkpoint's tensors, compared with the sums that were recorded of them."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from zipfile import ZipFile
from zlib import crc32

from intarsia.checking.alone.unfinished import fault_of
from intarsia.checking.fault import Fault
from intarsia.errors import IntarsiaError
from intarsia.format.registry import folder_of, format_named
from intarsia.format.torch_file.zip_directory import BROKEN_ZIP, MEMBER
from intarsia.planning.manifest import Entry, Manifest
from intarsia.store.reading.folder import MAX_SMALL_BYTES, Folder

_END = b"PK\x05\x06"
"""What the last record of an archive begins with."""

_LEAST_BYTES = 22
"""The bytes of that record: no archive has fewer."""


def damaged_entries(
    manifest: Manifest, known: Collection[str] = (), compared: Collection[str] = ()
) -> Iterator[Fault]:
    """Objects that are archives whose members have another CRC-32, or that are archives no longer.

    Files in `known` are absent or short, and are reported elsewhere; so are the objects `compared`.
    """
    if not format_named(manifest.format).entries_in_place:
        return
    with folder_of(manifest) as folder:
        for name, entry in manifest.entries.items():
            if name not in compared:
                yield from damaged_entry(folder, entry, known)


def damaged_entry(folder: Folder, entry: Entry, known: Collection[str] = ()) -> Iterator[Fault]:
    """What is wrong with one object, where its file is there; `known` is as above."""
    if not folder.has(entry.file):
        return
    try:
        wrong = _wrong_in(folder, entry)
    except (IntarsiaError, *BROKEN_ZIP) as error:
        if isinstance(error, IntarsiaError):
            error.raise_unless_fault()
        if entry.file in known and getattr(error, "kind", "") == "file-too-short":
            return
        wrong = str(error).partition("\n")[0]
    if wrong is not None:
        where = f"{entry.file} byte {entry.start_bytes:,}"
        text = f"the object `{entry.name}` is damaged: {wrong}"
        yield Fault("entry-damaged", (entry.name,), where, text, files=(entry.file,))


def contradicting_entries(manifest: Manifest) -> Iterator[Fault]:
    """Entries that contradict themselves or the folder that they lie in."""
    with folder_of(manifest) as folder:
        for found in format_named(manifest.format).contradictions(manifest, folder):
            yield fault_of(found)


def _wrong_in(folder: Folder, entry: Entry) -> str | None:
    """What is wrong with an object's bytes; those that a program saved as they are may be any."""
    file, start, length = entry.place
    if length < _LEAST_BYTES:
        return None
    head = folder.read(file, start, _LEAST_BYTES)
    tail = folder.read(file, start + length - _LEAST_BYTES, _LEAST_BYTES)
    if head.startswith(b"PK"):
        return _wrong_member(folder.read_small(file, start, length))
    if _END in tail:
        return "it ends as an archive, and does not begin as one"
    lost = not any(head + tail) and length <= MAX_SMALL_BYTES
    if lost and not any(folder.read(file, start, length)):
        return f"all its {length:,} bytes are zero"
    return None


def _wrong_member(data: bytes) -> str | None:
    with ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            if not data.startswith(MEMBER, info.header_offset):
                return f"{info.filename} does not begin as a member of an archive"
            start = info.header_offset + 30
            named = int.from_bytes(data[start - 4 : start - 2], "little")
            extra = int.from_bytes(data[start - 2 : start], "little")
            start += named + extra
            found = crc32(data[start : start + info.file_size])
            if info.CRC and found != info.CRC:
                return f"{info.filename} has CRC-32 {found:08x}, recorded {info.CRC:08x}"
    return None
