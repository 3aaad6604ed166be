"""The objects beside a checkpoint's tensors, and its files, compared with the sums that were recorded of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from hashlib import sha256
from zipfile import ZIP_STORED, ZipInfo

from intarsia.checking.fault import Fault, fault_of
from intarsia.errors import FormatError, IntarsiaError, StoreError, UnsupportedError
from intarsia.format.complaint import Complaint
from intarsia.format.registry import folder_of, format_named
from intarsia.format.torch_file.packed_members import content_of
from intarsia.format.torch_file.zip_directory import (
    LOCAL,
    MEMBER,
    ReadBytes,
    exactly,
    listing_of,
    opened,
)
from intarsia.planning.manifest import Entry, Manifest
from intarsia.run.budget import Budget
from intarsia.run.sharing import share_out
from intarsia.run.sums.checksum import crc32_of
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
    except IntarsiaError as error:
        error.raise_unless_fault()
        if entry.file in known and error.kind == "file-too-short":
            return
        wrong = error.what
    if wrong:
        where = f"{entry.file} byte {entry.start_bytes:,}"
        text = f"the object `{entry.name}` is damaged: {wrong}"
        yield Fault("entry-damaged", (entry.name,), where, text, files=(entry.file,))


def contradicting_entries(manifest: Manifest) -> Iterator[Fault]:
    """Entries that contradict themselves or the folder that they lie in."""
    with folder_of(manifest) as folder:
        try:
            for found in format_named(manifest.format).contradictions(manifest, folder):
                yield fault_of(found)
        except StoreError as error:
            yield fault_of(Complaint(error, (error.path.name,) if error.path else ()))


def _wrong_in(folder: Folder, entry: Entry) -> str:
    """What is wrong with an object's bytes; those that a program saved as they are may be any."""
    file, start, length = entry.place
    if length < _LEAST_BYTES:
        return ""
    head = folder.read(file, start, _LEAST_BYTES)
    tail = folder.read(file, start + length - _LEAST_BYTES, _LEAST_BYTES)
    if head.startswith(b"PK"):
        return wrong_member(
            lambda at, size: folder.read(file, start + at, size), length, file, MAX_SMALL_BYTES
        )
    if _END in tail:
        return "it ends as an archive, and does not begin as one"
    lost = not any(head + tail) and length <= MAX_SMALL_BYTES
    if lost and not any(folder.read(file, start, length)):
        return f"all its {length:,} bytes are zero"
    return ""


def wrong_member(read: ReadBytes, size: int, where: str, window_bytes: int) -> str:
    """What is wrong with a member of an archive; torch may have been set to record no CRC-32."""
    packed = []
    for info in listing_of(read, size, where).infos:
        at, name = info.header_offset, info.filename
        if at < 0:
            return f"{name} begins before the archive"
        local = LOCAL.unpack(exactly(read, at, LOCAL.size, where))
        if local[0] != MEMBER:
            return f"{name} does not begin as a member of an archive"
        if info.compress_type != ZIP_STORED:
            packed.append(info)
            continue
        start = at + LOCAL.size + local[9] + local[10]
        found = crc32_of(read, start, info.file_size, window_bytes)
        if info.CRC and found != info.CRC:
            return f"{name} has CRC-32 {found:08x}, recorded {info.CRC:08x}"
    return _wrong_among(packed, read, size) if packed else ""


def _wrong_among(members: Iterable[ZipInfo], read: ReadBytes, size: int) -> str:
    """What is wrong with a packed member of an archive; of one that Python cannot unpack nothing is said."""
    with opened(read, size) as archive:
        for member in members:
            try:
                for _ in content_of(archive, member):
                    pass
            except UnsupportedError:
                continue
            except FormatError as error:
                return error.brief
    return ""


def altered_files(manifest: Manifest, budget: Budget) -> Iterator[Fault]:
    """Files that are absent, or not the recorded ones; an absent one that tensors lie in is missed anyway."""
    unread: list[Complaint] = []
    with folder_of(manifest) as folder:
        recorded = format_named(manifest.format).recorded(folder, unread.append)
        yield from map(fault_of, unread)
        if recorded is None:
            return
        held = [name for name in recorded.sha256 if folder.has(name)]
        for name in recorded.sha256.keys() - {*held} - manifest.files.keys():
            yield Fault("file-missing", (), name, f"{recorded.file} lists {name}, which is absent")
        found = share_out(held, budget.workers, partial(_sha256, folder))
        for name, now in zip(held, found, strict=True):
            if now != recorded.sha256[name]:
                text = (
                    f"{name} is not the file that was saved: {recorded.file} has SHA-256"
                    f" {recorded.sha256[name]} of it, and it has {now}"
                )
                yield Fault("checksum-wrong", (), name, text)


def _sha256(folder: Folder, file: str) -> str:
    whole = sha256()
    for _, part in folder.parts(file):
        whole.update(part)
    return whole.hexdigest()
