"""Stamps of files, by which it shows that one was changed or replaced."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from intarsia.errors import ChangedError
from intarsia.store.naming import unreadable


class Stamp(NamedTuple):
    """A file's length, the times of its content and of its inode, and its number in the file system.

    The time of the inode (ctime) cannot be set back, so it shows a change that was hidden.
    """

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @staticmethod
    def of(path: Path) -> Stamp:
        try:
            return Stamp.from_stat(os.stat(path))
        except OSError as error:
            raise unreadable(path, error) from error

    @staticmethod
    def from_stat(found: os.stat_result) -> Stamp:
        return Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)

    def __str__(self) -> str:
        return (
            f"{self.size_bytes:,} bytes of {when(self.mtime_ns)},"
            f" inode {self.inode} of {when(self.ctime_ns)}"
        )


def when(nanoseconds: int) -> str:
    """A time of a file, in words."""
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest:09d}"


def changed(path: str | Path, then: Stamp, now: Stamp) -> ChangedError:
    """The error for a file that is no longer what it was."""
    return ChangedError(
        f"{path} changed while it was read: {then} at first, {now} now",
        hint="open it again, or convert again when nothing writes to it; nothing was committed",
        path=Path(path),
    )


@dataclass(frozen=True)
class Stamps:
    """The stamps of the files of a checkpoint, as they were when it was opened."""

    files: Mapping[str, Stamp]

    @staticmethod
    def of(paths: Iterable[str | Path], seen: Mapping[str, Stamp] | None = None) -> Stamps:
        """Stamps of files; of those in `seen`, as they were then."""
        seen = seen or {}
        return Stamps({str(path): seen.get(str(path)) or Stamp.of(Path(path)) for path in paths})

    def check(self) -> None:
        """Raise where a file is no longer what it was."""
        for path, then in self.files.items():
            if (now := Stamp.of(Path(path))) != then:
                raise changed(path, then, now)


_SEEN: ContextVar[dict[str, Stamp] | None] = ContextVar("seen", default=None)


@contextmanager
def noting_stamps() -> Iterator[dict[str, Stamp]]:
    """The stamps of all files that are opened inside, by their paths."""
    seen: dict[str, Stamp] = {}
    token = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(token)


def note_stamp(path: Path, stamp: Stamp) -> None:
    """Tell those who note stamps of a file that was opened; it may not differ from one time to the next."""
    seen = _SEEN.get()
    if seen is not None and (then := seen.setdefault(str(path), stamp)) != stamp:
        raise changed(path, then, stamp)
