"""The data files of a DCP folder: each is there, long enough, and holds no byte twice."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import FormatError, few
from intarsia.format.complaint import Complain, Complaint, refuse
from intarsia.format.dcp.metadata import MAX_METADATA_BYTES, METADATA, Metadata, read_metadata
from intarsia.mesh import Shape
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
    ends = {file: int(held.ends.max()) for file, held in claims.items()}
    shared = _shared(metadata) if any(held.may_overlap for held in claims.values()) else {}
    reported: list[FormatError] = []

    def report(error: FormatError, *files: str) -> None:
        reported.append(error)
        complain(Complaint(error, files))

    absent = sorted(file for file in ends if not folder.has(file))
    if absent:
        error = FormatError(
            f"{folder.root} lacks {len(absent)} of {len(ends)} data files"
            f" ({sum(len(claims[f].ends) for f in absent)} chunks): {few(absent, 4)}",
            hint="restore the files, or use a complete checkpoint",
            kind="file-missing",
        )
        report(error, *absent)
    sizes = {file: folder.size(file) for file in sorted(ends) if file not in absent}
    for file, size in sizes.items():
        if size < ends[file]:
            error = FormatError(
                f"{folder.root / file} has {size:,} bytes, its chunks end at {ends[file]:,}",
                hint="the file is truncated, or another has its name: copy it again from its source",
                kind="file-too-short",
            )
            report(error, file)
        elif both := shared.get(file):
            first, second, start = both
            error = safetensors_at(folder, file, start) or FormatError(
                f"{first} and {second} occupy the same bytes of {folder.root / file}",
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
    """The first byte of all that a file holds, and the one after the last; in that order."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @property
    def may_overlap(self) -> bool:
        """Whether two of them may share a byte; one of no bytes inside another shares none."""
        return bool((self.starts[1:] < self.ends[:-1]).any())


def _claims(metadata: Metadata) -> dict[str, _Claims]:
    """What is held by each file."""
    held = places_of([*(t.chunks for t in metadata.tensors.values()), [*metadata.objects.values()]])
    files, starts, ends = held.files, held.starts, held.starts + held.lengths
    order = np.lexsort((ends, starts, files))
    files, starts, ends = files[order], starts[order], ends[order]
    cuts = np.searchsorted(files, np.arange(len(held.names) + 1))
    return {
        file: _Claims(starts[cuts[k] : cuts[k + 1]], ends[cuts[k] : cuts[k + 1]])
        for k, file in enumerate(held.names)
    }


def _shared(metadata: Metadata) -> dict[str, tuple[str, str, int]]:
    """By file, the first two chunks that claim the same bytes of it, and from where."""
    by_file: dict[str, list[tuple[int, int, str, Shape]]] = {}
    for tensor in metadata.tensors.values():
        for c in tensor.chunks:
            if c.length_bytes:
                at = (c.start_bytes, c.start_bytes + c.length_bytes, tensor.name, c.box.offsets)
                by_file.setdefault(c.file, []).append(at)
    for o in metadata.objects.values():
        at = (o.start_bytes, o.start_bytes + o.length_bytes, o.name, ())
        by_file.setdefault(o.file, []).append(at)
    found: dict[str, tuple[str, str, int]] = {}
    for file, claims in by_file.items():
        claims.sort()
        for (_, end, a, at_a), (start, _, b, at_b) in pairwise(claims):
            if start < end:
                found[file] = (
                    f"chunk {list(at_a)} of `{a}`",
                    f"chunk {list(at_b)} of `{b}` (byte {start:,})",
                    start,
                )
                break
    return found
