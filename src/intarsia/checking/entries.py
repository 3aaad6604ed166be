"""The objects beside a checkpoint's tensors, held against the sums that were recorded of them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from zipfile import BadZipFile, ZipFile
from zlib import crc32

from intarsia.checking.fault import Fault
from intarsia.errors import IntarsiaError
from intarsia.formats import folder_of
from intarsia.planning.manifest import Manifest


def damaged_entries(manifest: Manifest) -> Iterator[Fault]:
    """Objects that are archives whose members have another CRC-32; absent files are told elsewhere."""
    if manifest.format == "hf":
        return
    with folder_of(manifest) as folder:
        for entry in manifest.entries.values():
            if not folder.has(entry.file):
                continue
            where = f"{entry.file} byte {entry.start_bytes:,}"
            try:
                data = folder.read(entry.file, entry.start_bytes, entry.length_bytes)
                wrong = _wrong_member(data) if data.startswith(b"PK") else None
            except (IntarsiaError, BadZipFile, NotImplementedError, EOFError) as error:
                wrong = str(error).partition("\n")[0]
            if wrong is not None:
                text = f"the object `{entry.name}` is damaged: {wrong}"
                yield Fault("entry-damaged", (entry.name,), where, text)


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
