"""What a store is: a place that keeps files under names, to be read and to be written.

Reading: `look` and `names` say what is there, a `Reader` brings bytes and the stamp of the file that
they are of.  Writing: `put` keeps a small file in one step, and a `Transaction` shows all of its files at
once, or none.  A store raises `OSError` where a call fails (`FileNotFoundError` where nothing is) and
`EOFError` where a file is too short; whoever calls it names the file.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from intarsia.store.log import Log, NumberedLog
from intarsia.store.stamp import Stamp
from intarsia.store.writing.hidden_names import JOURNAL, PARTIAL, beside

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from intarsia.store.writing.old_contents import OldContents

Range = tuple[int, memoryview]
"""The byte of a file at which to begin, and the buffer to fill from there."""

NEAR_BYTES = 4 << 10
"""Ranges with at most so many bytes between them are best read as one."""

EntryKind = Literal["file", "folder", "link", "other"]


class DirectoryEntry(NamedTuple):
    """What lies under a name.

    `stamp` changes when a file's content does; `number` when another file or folder takes its place.
    """

    kind: EntryKind
    stamp: Stamp
    number: tuple[int, int]


class OpenFiles(NamedTuple):
    """Files that are open: their descriptors, and what gives the stamp that one has now."""

    descriptors: Sequence[int]
    stamp: Callable[[int], Stamp]


class Reader(ABC):
    """The files below one folder, read by position from any thread."""

    has_descriptors: ClassVar[bool] = False
    """Whether files have descriptors, between which bytes are moved by themselves."""

    @abstractmethod
    def stamp(self, file: str) -> Stamp:
        """The stamp of a file now."""

    @abstractmethod
    def read(self, file: str, ranges: Sequence[Range]) -> Stamp:
        """Fill each buffer; the stamp, taken when all are full, of the file that was read."""

    def opened_together(self, files: Sequence[str]) -> AbstractContextManager[OpenFiles | None]:
        """Files that stay open inside, for the kernel; None where the store has no open files, or too many.

        The `filename` of an `OSError` is the file that cannot be opened.
        """
        return nullcontext()

    def hold(self) -> None:  # noqa: B027
        """Make sure, where the store can, that no other folder is read that takes this one's place."""

    def prefetch(self, file: str, start_bytes: int, length_bytes: int) -> None:  # noqa: B027
        """Say that these bytes are read soon; a store may do nothing about it."""

    def close(self) -> None:  # noqa: B027
        """Give back what reading took."""


class Transaction(ABC):
    """Files on their way to a destination, which sees all of them at once, or none.

    One writer at a time has a destination: `claim` locks it.  Until the commit its files are in `folder`,
    to be read back; `journal` is where their writer keeps what a later one is to know.
    What follows the abstract methods is for stores that have more to say.
    """

    failure: BaseException | None = None
    """What was lost of what this process wrote, though it was written."""

    has_descriptors: ClassVar[bool] = False
    """Whether files have descriptors, between which bytes are moved by themselves."""

    def __init__(self, store: Store, destination: PurePath) -> None:
        self.store = store
        self.destination = destination
        self.folder = beside(destination, PARTIAL)
        self.journal = beside(destination, JOURNAL)

    @property
    @abstractmethod
    def held(self) -> bool:
        """Whether this process has the lock."""

    @abstractmethod
    def claim(self) -> None:
        """Lock the destination, or raise where another writer has it; the lock ends with the process."""

    @abstractmethod
    def release(self) -> None:
        """Give the lock back."""

    @abstractmethod
    def clear(self) -> None:
        """Start again with an empty `folder`; without it, what an earlier writer left is still there."""

    @abstractmethod
    def number_of(self, path: PurePath) -> int | None:
        """The number of `folder` or of the destination; None where nothing is.

        `clear` gives the folder a number that nothing else has then, and a commit takes it to the destination.
        """

    @abstractmethod
    def create(self, file: str, size_bytes: int, *, keep: bool = False) -> None:
        """Make a file of a known length; with `keep`, what it holds already stays."""

    @abstractmethod
    def write(self, file: str, start_bytes: int, buffers: Sequence[Buffer]) -> None:
        """Write buffers one after another at a position of a file, from any thread."""

    @abstractmethod
    def commit(self, old: OldContents | None) -> None:
        """Show all files at the destination in one step, in the place of `old`, and make them last."""

    def check_place(self) -> None:  # noqa: B027
        """Refuse a place where no folder can be put."""

    def check_replaceable(self) -> None:  # noqa: B027
        """Refuse what is at the destination, where this user could not replace it."""

    def check_unchanged(self, old: OldContents | None) -> None:
        """Refuse a destination that others changed since it was `old`."""
        from intarsia.store.writing.old_contents import check_unchanged  # it looks at stores

        check_unchanged(self.destination, old)

    def check_left(self) -> None:  # noqa: B027
        """Refuse what an earlier writer left, where it is not what that can have written."""

    def keep_private(self, files: Iterable[PurePath], folder: PurePath | None) -> None:  # noqa: B027
        """Let only those read what is written who may read these files, and this folder."""

    def check_room(self, need_bytes: int, *, resumed: bool = False) -> None:  # noqa: B027
        """Raise where fewer bytes are free than are to be written; if `resumed`, beside those in `folder`."""

    def create_like(self, file: str, size_bytes: int, source: PurePath) -> None:
        """Make a file of a known length, for those who may read `source`."""
        self.create(file, size_bytes)

    def opened_together(self, files: Sequence[str]) -> AbstractContextManager[Sequence[int] | None]:
        """Descriptors of files, as of a `Reader`; `moved` receives what was written to them."""
        return nullcontext()

    def moved(self, file: str, start_bytes: int, length_bytes: int) -> None:  # noqa: B027
        """Take note of bytes that were moved to a file."""

    def flush(self, *, created: bool = False) -> None:  # noqa: B027
        """Make last what was written so far, and what was `created`."""

    def aside(self, work: Callable[[], object]) -> None:
        """Have something done that waits for the store, on a thread of its own where there is one."""
        work()

    def settle(self) -> None:  # noqa: B027
        """Wait for what is being done aside."""

    def sync(self) -> None:  # noqa: B027
        """Make last all that this process wrote; it writes no more before the commit."""

    def close(self) -> None:  # noqa: B027
        """Give back what writing took; what was written stays as it is."""

    def settle_down(self) -> None:  # noqa: B027
        """Make a commit last that an earlier process may have made."""

    def clear_up(self, old: OldContents | None) -> None:
        """Remove what is left in `folder`; after a commit that may be the `old`, and nothing else."""
        self.store.remove(self.folder)

    def is_part(self, path: PurePath) -> bool:
        """Whether a path is one of those that are written here."""
        mine = (self.folder, self.journal, self.destination)
        return any(path.is_relative_to(each) for each in mine)


class Store(ABC):
    """A place that keeps files under names; one that is only read has no more than its abstract methods."""

    shared: ClassVar[bool] = False
    """Whether all processes of a job find the same files here, so that they may write one destination."""

    @abstractmethod
    def look(self, path: PurePath) -> DirectoryEntry | None:
        """What lies under a name; None where nothing does."""

    @abstractmethod
    def names(self, folder: PurePath) -> list[str]:
        """The names of what lies in a folder."""

    @abstractmethod
    def reader(self, folder: PurePath) -> Reader:
        """What reads the files below a folder."""

    def transaction(self, destination: PurePath) -> Transaction:
        """What writes a destination."""
        raise OSError(errno.EROFS, "this store is only read")

    def put(self, path: PurePath, data: bytes, *, lasting: bool = True) -> None:
        """Keep a small file in one step: whoever reads finds the old one or this one.

        Unless it is `lasting` a power cut may lose it.
        """
        raise OSError(errno.EROFS, "this store is only read")

    def remove(self, path: PurePath) -> None:
        """Remove a file, or a folder with all that is in it, if there is one."""
        raise OSError(errno.EROFS, "this store is only read")

    def log(self, path: PurePath) -> Log:
        """What adds lines to a file."""
        return NumberedLog(self, path)
