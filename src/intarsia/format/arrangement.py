"""The files of a checkpoint before their bytes: the place of every box of every target.

The slots of many targets are kept in columns; values are made from these when they are asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import accumulate, chain
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import CoverageError
from intarsia.frozen import frozen, frozen_open
from intarsia.mesh import Box
from intarsia.planning.chunks import Numbers, numbers_of_ranges
from intarsia.planning.made_when_asked import MadeTogether


class Wrapping(Protocol):
    """Bytes around the elements of a chunk; those after them depend on the elements' checksum."""

    @property
    def start_bytes(self) -> int: ...

    @property
    def length_bytes(self) -> int: ...

    @property
    def head(self) -> bytes: ...

    def tails(self, crcs: NDArray[np.uint32]) -> NDArray[np.uint8]:
        """What follows the elements, in a row for each CRC-32 that they may have."""

    def tail(self, crc: int) -> bytes: ...


@frozen
class Slot:
    """Where the elements of one box of a target go.

    `gap_bytes` before them and what is wrapped around them are zeros, and nothing else lies there.
    """

    box: Box
    file: str
    start_bytes: int
    wrapping: Wrapping | None = None
    gap_bytes: int = 0


class Wrapped(NamedTuple):
    """The boxes of a target, and what is wrapped around the elements of each."""

    boxes: tuple[Box, ...]
    wrappings: tuple[Wrapping | None, ...]


class SlotPlaces(NamedTuple):
    """Places of slots: numbers of their files' `names`, the first bytes of their elements, the gaps before them."""

    names: Sequence[str]
    files: Numbers
    starts: Numbers
    gaps: Numbers


class SlotColumns(MadeTogether[Slot]):
    """The slots of a target, which are at the `places` from number `first` on; `wrapped` is one object for targets
    that are cut alike."""

    __slots__ = ("first", "places", "wrapped")

    def __init__(self, wrapped: Wrapped, places: SlotPlaces, first: int) -> None:
        self.wrapped = wrapped
        self.places = places
        self.first = first

    def __len__(self) -> int:
        return len(self.wrapped.boxes)

    def _make(self) -> tuple[Slot, ...]:
        names, *columns = self.places
        files, starts, gaps = (x[self.first : self.first + len(self)].tolist() for x in columns)
        each = zip(self.wrapped.boxes, files, starts, self.wrapped.wrappings, gaps, strict=True)
        return tuple([Slot(box, names[file], *more) for box, file, *more in each])


def whole_numbers(rows: Sequence[tuple[int, int, int]]) -> NDArray[np.int64]:
    """Rows of three in columns; raise where one is no whole number of 64 bits."""
    found = np.array([(0, 0, 0), *rows])  # to ask for a type here would cut fractions off
    if not np.can_cast(found.dtype, np.int64):
        wrong = next((row for row in rows if np.array(row).dtype != np.int64), ())
        raise CoverageError(
            f"places in files are whole numbers of bytes: {wrong}",
            hint="fix `arrange` of the format; nothing was written",
        )
    return found.astype(np.int64)[1:].T


def in_columns(held: Sequence[Sequence[Slot]]) -> list[SlotColumns]:
    """The slots of each target in columns, whatever form a format gives them in."""
    names, alike, first = dict[str, int](), dict[Hashable, Wrapped](), 0
    listed = chain.from_iterable(x for x in held if not isinstance(x, SlotColumns))
    rows = [(names.setdefault(x.file, len(names)), x.start_bytes, x.gap_bytes) for x in listed]
    columns, found = whole_numbers(rows), list[SlotColumns]()
    places = SlotPlaces([*names], *columns)
    for slots in held:
        if not isinstance(slots, SlotColumns):
            wrapped = Wrapped(tuple([x.box for x in slots]), tuple([x.wrapping for x in slots]))
            key = wrapped.boxes, *map(id, wrapped.wrappings)
            slots = SlotColumns(alike.setdefault(key, wrapped), places, first)
            first += len(slots)
        found.append(slots)
    return found


def joined_places(held: Sequence[SlotColumns]) -> SlotPlaces:
    """The places of the slots of targets, one after another."""
    every = {id(slots.places): slots.places for slots in held}
    bases = dict(zip(every, accumulate(map(_count, every.values()), initial=0), strict=False))
    counts = np.array([len(slots.wrapped.boxes) for slots in held], np.int64)
    firsts = np.array([bases[id(slots.places)] + slots.first for slots in held], np.int64)
    numbers = numbers_of_ranges(firsts, counts)
    names, *columns = next(iter(every.values())) if len(every) == 1 else _merged(every.values())
    return SlotPlaces(names, *(column[numbers] for column in columns))


def _count(places: SlotPlaces) -> int:
    return len(places.files)


def _merged(every: Collection[SlotPlaces]) -> SlotPlaces:
    names = dict[str, int]()
    columns = [np.empty((3, 0), np.int64)]
    for places in every:
        files = np.array([names.setdefault(x, len(names)) for x in places.names], np.int64)
        columns.append(np.stack([files[places.files], places.starts, places.gaps]))
    return SlotPlaces([*names], *np.concatenate(columns, 1))


@frozen_open
class Arrangement:
    """The files of a checkpoint before their bytes: sizes, slots, fixed parts, closing files.

    A format may give tuples of slots; one that writes tens of thousands of boxes gives columns.
    `home` is the folder, below the destination, that a reader takes for the checkpoint.
    """

    files: Mapping[str, int]
    slots: Mapping[str, Sequence[Slot]]
    fixed: Sequence[tuple[str, int, bytes]] = ()
    closing: Mapping[str, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    home: str = ""

    @cached_property
    def columns(self) -> Mapping[str, SlotColumns]:
        """The slots in columns, whatever form the format gives them in."""
        return dict(zip(self.slots, in_columns([*self.slots.values()]), strict=True))

    @property
    def held_bytes(self) -> int:
        """What the fixed parts and the closing files take in memory, equal ones counted once."""
        held = {id(data): len(data) for _, _, data in self.fixed}
        return sum(held.values()) + sum(map(len, self.closing.values()))
