"""The chunks of many tensors in columns; values are made from these when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.mesh import Box
from intarsia.planning.made_when_asked import MadeTogether
from intarsia.planning.manifest import Chunk, Entry
from intarsia.planning.whole_tensor import WholeTensor

Numbers = NDArray[np.int64]

Lying = Chunk | Entry | WholeTensor
"""What lies in one stretch of a file."""


FileRange = tuple[str, int, int]
"""A file, the byte at which something begins in it, and its length."""


class FileRanges(NamedTuple):
    """Stretches of files: numbers of their `names`, first bytes and lengths."""

    names: Sequence[str]
    files: Numbers
    starts: Numbers
    lengths: Numbers

    @staticmethod
    def of(held: Sequence[FileRange]) -> FileRanges:
        """Places in columns, their files numbered."""
        files, starts, lengths = zip(*held, strict=True) if held else ((), (), ())
        numbers = {file: k for k, file in enumerate(dict.fromkeys(files))}
        columns = [*map(numbers.__getitem__, files)], starts, lengths
        return FileRanges([*numbers], *(np.array(column, np.int64) for column in columns))

    def lists(self, first: int, stop: int) -> tuple[list[str], list[int], list[int]]:
        """Files, first bytes and lengths of some of them."""
        some = slice(first, stop)
        files = [self.names[k] for k in self.files[some].tolist()]
        return files, self.starts[some].tolist(), self.lengths[some].tolist()


class Chunks(MadeTogether[Chunk]):
    """The chunks of a tensor, which lie at the `places` from number `first` on; `boxes` is one object for tensors
    that are cut alike."""

    __slots__ = ("boxes", "first", "places")

    def __init__(self, boxes: tuple[Box, ...], places: FileRanges, first: int) -> None:
        self.boxes = boxes
        self.places = places
        self.first = first

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def columns(self) -> tuple[list[str], list[int], list[int]]:
        """Files, first bytes and lengths."""
        return self.places.lists(self.first, self.first + len(self.boxes))

    def _make(self) -> tuple[Chunk, ...]:
        return tuple([Chunk(*each) for each in zip(self.boxes, *self.columns, strict=True)])


def numbers_of_ranges(firsts: Numbers, counts: Numbers) -> Numbers:
    """The numbers of ranges, one after another.

    >>> numbers_of_ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    found: Numbers = np.repeat(firsts - counts.cumsum() + counts, counts)
    return found + np.arange(len(found))


def repeated(columns: Sequence[Numbers], which: Sequence[int]) -> Numbers:
    """Of columns that recur, those with these numbers, one after another."""
    counts, some = np.array([x.shape[1] for x in columns], np.int64), np.array(which, np.int64)
    firsts = counts.cumsum() - counts
    return np.concatenate(columns, 1)[:, numbers_of_ranges(firsts[some], counts[some])]


def first_place(chunks: Sequence[Chunk]) -> tuple[str, int] | None:
    """The file and the byte at which the first chunk of a tensor begins; None where it has none."""
    if not len(chunks):
        return None
    if isinstance(chunks, Chunks):
        names, files, starts, _ = chunks.places
        return names[files[chunks.first]], int(starts[chunks.first])
    return chunks[0].file, chunks[0].start_bytes


def boxes_of(chunks: Sequence[Chunk]) -> tuple[Box, ...]:
    """The boxes of a tensor's chunks."""
    return chunks.boxes if type(chunks) is Chunks else tuple([chunk.box for chunk in chunks])


def columns_of(chunks: Sequence[Lying]) -> tuple[list[str], list[int], list[int]]:
    """The files, first bytes and lengths of what lies in files."""
    if isinstance(chunks, Chunks):
        return chunks.columns
    files, starts = [x.file for x in chunks], [x.start_bytes for x in chunks]
    return files, starts, [x.length_bytes for x in chunks]


def places_of(held: Sequence[Sequence[Lying]]) -> FileRanges:
    """The places of all chunks of tensors, and of entries."""
    known, count, end = FileRanges([], *np.zeros((3, 0), np.int64)), 0, 0
    # Those that are in columns already, one after another, stay there.
    for chunks in held:
        if not isinstance(chunks, Chunks) or chunks.first != end:
            break
        if count and chunks.places is not known:
            break
        known, count, end = chunks.places, count + 1, end + len(chunks)
    files, starts, lengths = columns_of([*chain.from_iterable(held[count:])])
    names = {file: k for k, file in enumerate(dict.fromkeys([*known.names, *files]))}
    columns = [names[file] for file in files], starts, lengths
    each = zip(known[1:], columns, strict=True)
    whole = [np.concatenate([a[:end], np.array(b, np.int64)]) for a, b in each]
    used = np.bincount(whole[0], minlength=len(names)) > 0
    whole[0] = (np.cumsum(used) - 1)[whole[0]]
    return FileRanges([name for name, is_used in zip(names, used, strict=True) if is_used], *whole)
