"""Small chunks that have something around their elements, read with it by few calls and checked together.

A format checks what lies around the elements of one chunk.  Of the others that are alike all of it is
compared, byte by byte, with what the format says that it must be, for many of them at once.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.survey.items import SurveyItem
from intarsia.errors import IntarsiaError, StoreError
from intarsia.format.base import Around, Format
from intarsia.frozen import frozen
from intarsia.planning.manifest import Chunk, Stored
from intarsia.run.room import Bytes, Room, in_parts
from intarsia.run.sums.checksum import crc32
from intarsia.store.reading.folder import Folder
from intarsia.value.bits import bits_dtype

Marks = NDArray[np.bool_]
Ints = NDArray[np.int64]

GAP_BYTES = 512
"""Chunks that lie so near each other are read as one stretch of their file."""

_MOST_KINDS = 4
"""How many kinds of chunks of one shape and length are distinguished; any other chunk is surveyed alone."""


@frozen
class ItemsCutAlike:
    """Items of one shape and element type that are cut alike, and a row of memory for the elements of each."""

    items: Sequence[SurveyItem]
    rows: Bytes


@frozen
class Brought:
    """Of each item, whether all of its chunks are as they were saved, and how many had no checksum."""

    sound: Marks
    unsealed: Ints


@dataclass
class KnownChunks:
    """What lies around the elements of chunks, by what those have in common that are alike."""

    format: Format
    folder: Folder
    _known: dict[Hashable, list[Around]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def like(self, items: Sequence[SurveyItem], number: int) -> list[Around]:
        """What is known of chunk `number` of items that are cut alike."""
        stored, chunk = items[0].stored, items[0].chunks[number]
        kind = self.format.front_kind(stored), stored.dtype, chunk.box.shape, chunk.length_bytes
        return self._known.setdefault(kind, [])

    def learn(self, known: list[Around], count: int, stored: Stored, chunk: Chunk) -> bool:
        """Know more than `count` kinds of chunks; false where this one is at fault, or tells nothing of others."""
        with self._lock:
            if len(known) > count:
                return True
            try:
                found = self.format.around(self.folder, stored, chunk)
            except StoreError:
                raise
            except IntarsiaError as error:
                error.raise_unless_fault()
                return False
            if found is not None:
                known.append(found)
            return found is not None


def bring(groups: Sequence[ItemsCutAlike], known: KnownChunks, room: Room) -> list[Brought]:
    """Put the elements of small items, group by group, into their rows."""
    chunks = [
        [item.chunks[number] for item in group.items]
        for group in groups
        for number in range(len(group.items[0].chunks))
    ]
    memory, places = _read(known.folder, chunks, room)
    each = iter(places)
    return [_bring_group(group, known, memory, each) for group in groups]


def _bring_group(
    group: ItemsCutAlike, known: KnownChunks, memory: Bytes, places: Iterator[Ints]
) -> Brought:
    items, count = group.items, len(group.items)
    stored = items[0].stored
    bits = bits_dtype(stored.dtype)
    # An axis of the items comes before their own, and NumPy has no more axes than one of them may have.
    axes = [axis for axis, n in enumerate(stored.shape) if n > 1]
    whole = group.rows.view(bits).reshape(count, *[stored.shape[axis] for axis in axes])
    sound, unsealed = np.ones(count, np.bool_), np.zeros(count, np.int64)
    for number, chunk in enumerate(items[0].chunks):
        at = next(places)
        size = chunk.box.size * stored.dtype.itemsize
        starts, said = _known_chunks(items, number, known, memory, at)
        held = _rows(memory, at + np.maximum(starts, 0), size)
        found = np.fromiter(map(crc32, held), np.uint32, count)
        sound &= (starts >= 0) & ((found == said) | (said == 0))
        unsealed += said == 0
        part = whole[(slice(None), *[chunk.box.slices[axis] for axis in axes])]
        part[...] = held.view(bits).reshape(part.shape)
    return Brought(sound, unsealed)


def _known_chunks(
    items: Sequence[SurveyItem], number: int, known: KnownChunks, memory: Bytes, at: Ints
) -> tuple[Ints, NDArray[np.uint32]]:
    """Where in chunk `number` of each item its elements begin, and the CRC-32 that is recorded of them.

    That is -1 for a chunk that is not like any that was checked.
    """
    chunk = items[0].chunks[number]
    size = chunk.box.size * items[0].stored.dtype.itemsize
    starts, said = np.full(len(items), -1, np.int64), np.zeros(len(items), np.uint32)
    left, kinds = np.arange(len(items)), known.like(items, number)
    for count in range(_MOST_KINDS):
        if not len(left):
            break
        first = items[left[0]]
        if not known.learn(kinds, count, first.stored, first.chunks[number]):
            break
        around = kinds[count]
        start = len(around.front)
        after = chunk.length_bytes - start - size
        same, crcs = around.ends.recorded(_rows(memory, at[left] + start + size, after))
        fronts = _rows(memory, at[left], start)
        same &= (fronts == np.frombuffer(around.front, np.uint8)).all(axis=1)
        starts[left[same]], said[left[same]] = start, crcs[same]
        left = left[~same]
    return starts, said


def _read(
    folder: Folder, chunks: Sequence[Sequence[Chunk]], room: Room
) -> tuple[Bytes, list[Ints]]:
    """Chunks of any files in memory, near ones as one stretch; and where each of them begins there."""
    files = {chunk.file: 0 for some in chunks for chunk in some}
    numbers = {file: number for number, file in enumerate(files)}
    of = np.array([numbers[chunk.file] for some in chunks for chunk in some], np.int64)
    starts = np.array([chunk.start_bytes for some in chunks for chunk in some], np.int64)
    lengths = np.repeat([some[0].length_bytes for some in chunks], [len(some) for some in chunks])
    order = np.lexsort((starts, of))
    of, firsts, lasts = of[order], starts[order], (starts + lengths)[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (of[1:] != of[:-1]) | (firsts[1:] - lasts[:-1] > GAP_BYTES)
    heads = np.flatnonzero(new)
    begins, ends = firsts[heads], np.maximum.reduceat(lasts, heads)
    sizes = ends - begins
    memory = room.take(int(sizes.sum()))
    stretch = np.cumsum(new) - 1
    places = np.empty(len(order), np.int64)
    places[order] = firsts - begins[stretch] + (np.cumsum(sizes) - sizes)[stretch]
    views = in_parts(memory, sizes.tolist())
    of_stretch = of[heads]
    for file, number in numbers.items():
        lo, hi = np.searchsorted(of_stretch, [number, number + 1]).tolist()
        some = zip(begins[lo:hi].tolist(), views[lo:hi], strict=True)
        folder.read_each(file, [(start, view.data) for start, view in some])
    edges = np.cumsum([0, *map(len, chunks)]).tolist()
    return memory, [places[lo:hi] for lo, hi in pairwise(edges)]


def _rows(memory: Bytes, at: Ints, width: int) -> Bytes:
    """So many bytes from each of these places on, as rows of one array."""
    windows = np.ndarray((len(memory) - width + 1, width), np.uint8, memory.data, 0, (1, 1))
    found: Bytes = windows[at]
    return found
