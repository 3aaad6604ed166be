"""What a store is: a place that keeps files under names, to be read and to be written.

Reading: `look` and `names` say what is there, a `Reader` brings bytes and the stamp of the file that
they are of.  Writing: a `Transaction` shows all of its files at once, or none.  A store raises `OSError`
where a call fails (`FileNotFoundError` where nothing is) and `EOFError` where a file is too short;
whoever calls it names the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from intarsia.store.stamp import Stamp

if TYPE_CHECKING:
    from typing_extensions import Buffer

PARTIAL = ".intarsia-partial"
"""How the name of a folder ends that is not whole yet."""

Range = tuple[int, memoryview]
"""The byte of a file at which to begin, and the buffer to fill from there."""


Kind = Literal["file", "folder", "link", "other"]


class Entry(NamedTuple):
    """What lies under a name.

    `stamp` changes when a file's content does; `number` when another file or folder takes its place.
    """

    kind: Kind
    stamp: Stamp
    number: tuple[int, int]


class Reader(Protocol):
    """The files below one folder, read by position from any thread."""

    def hold(self) -> None:
        """Make sure, where the store can, that no other folder is read that takes this one's place."""
        ...

    def stamp(self, file: str) -> Stamp:
        """The stamp of a file now."""
        ...

    def read(self, file: str, ranges: Sequence[Range]) -> Stamp:
        """Fill each buffer; the stamp, taken when all are full, of the file that was read."""
        ...

    def prefetch(self, file: str, start_bytes: int, length_bytes: int) -> None:
        """Say that these bytes are read soon; a store may do nothing about it."""
        ...

    def close(self) -> None:
        """Give back what reading took."""
        ...


class Transaction(Protocol):
    """Files on their way to a destination, which sees all of them at once, or none.

    One writer at a time holds a destination: `claim` locks it, `commit` and `abandon` give it back.
    """

    @property
    def destination(self) -> PurePath:
        """Where the files appear."""
        ...

    @property
    def folder(self) -> PurePath:
        """Where they are until then, to be read back."""
        ...

    def claim(self) -> None:
        """Lock the destination, or raise where another writer has it."""
        ...

    def clear(self) -> None:
        """Start again; without it, what an earlier writer kept is still in `folder`: that is to resume."""
        ...

    def create(self, file: str, size_bytes: int, *, keep: bool = False) -> None:
        """Make a file of a known length; with `keep`, what it holds already stays."""
        ...

    def write(self, file: str, start_bytes: int, buffers: Sequence[Buffer]) -> None:
        """Write buffers one after another at a position of a file, from any thread."""
        ...

    def commit(self) -> list[str]:
        """Show all files at the destination in one step; what is to be said of it."""
        ...

    def abandon(self, *, keep: bool = False) -> bool:
        """Stop and leave the destination as it was; whether what was written is kept for later."""
        ...


class Store(Protocol):
    """A place that keeps files under names."""

    def look(self, path: PurePath) -> Entry | None:
        """What lies under a name; None where nothing does."""
        ...

    def names(self, folder: PurePath) -> list[str]:
        """The names of what lies in a folder."""
        ...

    def reader(self, folder: PurePath) -> Reader:
        """What reads the files below a folder."""
        ...

    def transaction(self, destination: PurePath, *, overwrite: bool = False) -> Transaction:
        """What writes a destination; one that exists may be replaced with `overwrite`."""
        ...
