"""The data files of a DCP folder: each is there, long enough, and holds no byte twice."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from intarsia.errors import FormatError, few
from intarsia.format.complaint import Complain, Complaint, refuse
from intarsia.format.dcp.metadata import MAX_METADATA_BYTES, METADATA, Metadata, read_metadata
from intarsia.planning.chunks import places_of
from intarsia.quantity import human
from intarsia.store.reading.folder import Folder

HOLLOW_BYTES = 64 << 20
"""How much of a checkpoint may be claimed without being stored, before it is no checkpoint."""


def open_metadata(folder: Folder, complain: Complain = refuse) -> tuple[Metadata, dict[str, int]]:
    """A folder's metadata, and the sizes of its data files, each of which is there and long enough."""
    metadata = metadata_of(folder, complain)
    return metadata, check_files(folder, metadata, complain)


def metadata_of(folder: Folder, complain: Complain = refuse) -> Metadata:
    """A folder's metadata alone."""
    data = folder.read_all(METADATA, MAX_METADATA_BYTES)
    return read_metadata(data, str(folder.root / METADATA), complain)


def check_files(folder: Folder, metadata: Metadata, complain: Complain = refuse) -> dict[str, int]:
    """The sizes of the data files; complain where one is absent or too short."""
    claims = _claims(metadata)
    reported: list[FormatError] = []

    def report(error: FormatError, *files: str) -> None:
        reported.append(error)
        complain(Complaint(error, files))

    absent = sorted(file for file in claims if not folder.has(file))
    if absent:
        error = FormatError(
            f"{folder.root} lacks {len(absent)} of {len(claims)} data files"
            f" ({sum(claims[f].held for f in absent)} chunks): {few(absent, 4)}",
            hint="restore the files, or use a complete checkpoint",
            kind="file-missing",
        )
        report(error, *absent)
    sizes = {file: folder.size(file) for file in sorted(claims) if file not in absent}
    for file, size in sizes.items():
        if size < claims[file].end:
            error = FormatError(
                f"{folder.root / file} has {size:,} bytes, its chunks end at {claims[file].end:,}",
                hint="the file is truncated, or another has its name: copy it again from its source",
                kind="file-too-short",
            )
            report(error, file)
        elif both := claims[file].shared:
            (first, _), (second, start) = (_described(metadata, number) for number in both)
            error = safetensors_at(folder, file, start) or FormatError(
                f"{first} and {second} (byte {start:,}) occupy the same bytes of {folder.root / file}",
                hint="the metadata is another checkpoint's, or damaged",
                kind="bytes-overlap",
            )
            report(error, file)
    hollow = _hollow(folder, metadata, sum(sizes.values()))
    if hollow is not None:
        # Where files are lost it is for their lack that too little is stored, and that is said.
        raise reported[0] if reported else hollow
    return sizes


def safetensors_at(folder: Folder, file: str, start: int) -> FormatError | None:
    """What is wrong where a file of safetensors begins in place of a chunk, as one writer of torch's leaves it."""
    left = folder.size(file) - start
    head = folder.read(file, start, 10) if left >= 10 and folder.has(file) else b""
    if head[8:] != b'{"' or int.from_bytes(head[:8], "little") > left:
        return None
    return FormatError(
        f"{folder.root / file} holds safetensors from byte {start:,} on, in place of the chunks that"
        f" {METADATA} lists: FileSystemWriter with the serialization_format SAFETENSORS writes it so,"
        " and torch does not find the tensors again",
        hint="save again without that option, or with torch's HuggingFaceStorageWriter",
    )


def _hollow(folder: Folder, metadata: Metadata, held_bytes: int) -> FormatError | None:
    """What is wrong where tensors claim far more than is stored: to go over them would never end."""
    claims = {t.name: prod(t.shape) * t.dtype.itemsize for t in metadata.tensors.values()}
    claimed = sum(claims.values())
    if claimed > 4 * held_bytes + HOLLOW_BYTES:
        largest = max(claims, key=claims.__getitem__)
        return FormatError(
            f"{folder.root} describes {human(claimed)} of tensors, but its files have"
            f" {human(held_bytes)}; `{largest}` alone would have {human(claims[largest])}",
            hint="the metadata is another checkpoint's, or damaged",
            kind="elements-missing",
            tensors=(largest,),
        )
    return None


class _Claims(NamedTuple):
    """What is to be in a file: how many chunks and objects are held, the byte after the last, and the first two that share
    bytes, by their numbers among all."""

    held: int
    end: int
    shared: tuple[int, int] | None


def _claims(metadata: Metadata) -> dict[str, _Claims]:
    """What is to be in each file."""
    held = places_of([*(t.chunks for t in metadata.tensors.values()), [*metadata.objects.values()]])
    ends, last = held.starts + held.lengths, np.zeros(len(held.names), np.int64)
    np.maximum.at(last, held.files, ends)
    counts = np.bincount(held.files, minlength=len(held.names))
    order = np.lexsort((ends, held.starts, held.files))
    order = order[held.lengths[order] > 0]  # one of no bytes inside another shares none
    before, after = order[:-1], order[1:]
    both = (held.files[before] == held.files[after]) & (held.starts[after] < ends[before])
    shared = dict[int, tuple[int, int]]()
    for k in np.flatnonzero(both).tolist():
        shared.setdefault(int(held.files[before[k]]), (int(before[k]), int(after[k])))
    return {
        file: _Claims(int(counts[k]), int(last[k]), shared.get(k))
        for k, file in enumerate(held.names)
    }


def _described(metadata: Metadata, number: int) -> tuple[str, int]:
    """A chunk or an object by its number among all: in words, and where it begins."""
    for tensor in metadata.tensors.values():
        if number < len(tensor.chunks):
            chunk = tensor.chunks[number]
            return f"chunk {list(chunk.box.offsets)} of `{tensor.name}`", chunk.start_bytes
        number -= len(tensor.chunks)
    entry = [*metadata.objects.values()][number]
    return f"chunk [] of `{entry.name}`", entry.start_bytes
