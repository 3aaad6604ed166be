"""The objects beside a checkpoint's tensors, held against the sums that were recorded of them."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import PurePath
from zipfile import ZipFile
from zlib import crc32

from intarsia.checking.fault import Fault
from intarsia.errors import FormatError, IntarsiaError
from intarsia.format.megatron.common import COMMON_OBJECT
from intarsia.format.megatron.frame import COMMON_FILE
from intarsia.format.registry import folder_of
from intarsia.format.torch_file.torch_zip import BROKEN_ZIP, read_object
from intarsia.planning.manifest import Entry, Manifest
from intarsia.store.folder import MAX_SMALL_BYTES, Folder

_END = b"PK\x05\x06"
"""What the last record of an archive begins with."""

_LEAST_BYTES = 22
"""The bytes of that record: no archive has fewer."""


def damaged_entries(manifest: Manifest, known: Collection[str] = ()) -> Iterator[Fault]:
    """Objects that are archives whose members have another CRC-32, or that are archives no longer.

    Of the files that are `known` to be absent or short it is told elsewhere.
    """
    if manifest.format == "hf":
        return
    with folder_of(manifest) as folder:
        for entry in manifest.entries.values():
            if not folder.has(entry.file):
                continue
            where = f"{entry.file} byte {entry.start_bytes:,}"
            try:
                wrong = wrong_in(folder, entry)
            except (IntarsiaError, *BROKEN_ZIP) as error:
                if isinstance(error, IntarsiaError):
                    error.blame()
                if entry.file in known and getattr(error, "kind", "") == "file-too-short":
                    continue
                wrong = str(error).partition("\n")[0]
            if wrong is not None:
                text = f"the object `{entry.name}` is damaged: {wrong}"
                yield Fault("entry-damaged", (entry.name,), where, text)


def misplaced_iteration(manifest: Manifest) -> Iterator[Fault]:
    """Common states of Megatron's, in either of their homes, that are not of their folder's iteration."""
    home = PurePath(manifest.path).name
    named = re.fullmatch(r"iter_(\d+)", home)
    if manifest.format != "torch_dist" or named is None:
        return
    for where, data in _common_states(manifest):
        try:
            state = read_object(data, where)
        except FormatError:
            continue  # told as a damaged entry
        state = state[0] if isinstance(state, list) and len(state) == 1 else state
        counted = state.get("iteration") if isinstance(state, dict) else None
        if type(counted) is int and counted != int(named[1]):
            text = f"the common state is of iteration {counted:,}, and lies in {home}"
            yield Fault("steps-disagree", (COMMON_OBJECT,), where, text)


def _common_states(manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    entry = manifest.entries.get(COMMON_OBJECT)
    with folder_of(manifest) as folder, suppress(IntarsiaError):
        if folder.has(COMMON_FILE):
            yield COMMON_FILE, folder.read_all(COMMON_FILE)
        if entry is not None and entry.file != COMMON_FILE:
            data = folder.read_small(*_place(entry))
            yield entry.file, data


def _place(entry: Entry) -> tuple[str, int, int]:
    return entry.file, entry.start_bytes, entry.length_bytes


def wrong_in(folder: Folder, entry: Entry) -> str | None:
    """What is wrong with an object's bytes; those that a program saved as they are may be any."""
    file, start, length = _place(entry)
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
            start = info.header_offset + 30
            named = int.from_bytes(data[start - 4 : start - 2], "little")
            extra = int.from_bytes(data[start - 2 : start], "little")
            start += named + extra
            found = crc32(data[start : start + info.file_size])
            if info.CRC and found != info.CRC:
                return f"{info.filename} has CRC-32 {found:08x}, recorded {info.CRC:08x}"
    return None
