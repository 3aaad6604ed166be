"""Stamps of files, by which it shows that one was changed or replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from intarsia.errors import ChangedError

if TYPE_CHECKING:
    import os


class Stamp(NamedTuple):
    """A file's length, the times of its content and of its inode, and its number in the file system.

    The time of the inode (ctime) cannot be set back, so it shows a change that was hidden.
    """

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int

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


def changed(path: str | PurePath, then: Stamp, now: Stamp) -> ChangedError:
    """The error for a file that is no longer what it was."""
    return ChangedError(
        f"{path} changed while it was read: {then} at first, {now} now",
        hint="open it again, or convert again when nothing writes to it; nothing was committed",
        path=PurePath(path),
    )


def removed(path: PurePath) -> ChangedError:
    """The error for a file that is there no longer."""
    return ChangedError(
        f"{path} was removed after the checkpoint was opened",
        hint="another checkpoint may have taken its place: open it again",
        path=path,
    )


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


def note_stamp(path: PurePath, stamp: Stamp) -> None:
    """Tell those who note stamps of a file that was opened; it may not differ from one time to the next."""
    seen = _SEEN.get()
    if seen is not None and (then := seen.setdefault(str(path), stamp)) != stamp:
        raise changed(path, then, stamp)
