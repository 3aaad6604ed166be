"""Stamps of files, by which it shows that one was changed or replaced."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from intarsia.errors import FormatError
from intarsia.store.naming import unreadable


@dataclass(frozen=True, slots=True)
class Stamp:
    """A file's length, the time of its last change, and its number in the file system."""

    size_bytes: int
    mtime_ns: int
    inode: int

    @staticmethod
    def of(path: Path) -> Stamp:
        try:
            found = os.stat(path)
        except OSError as error:
            raise unreadable(path, error) from error
        return Stamp(found.st_size, found.st_mtime_ns, found.st_ino)

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.mtime_ns // 10**9, UTC)
        nanos = self.mtime_ns % 10**9
        return (
            f"{self.size_bytes:,} bytes of {when:%Y-%m-%d %H:%M:%S}.{nanos:09d}, inode {self.inode}"
        )


@dataclass(frozen=True)
class Stamps:
    """The stamps of the files of a checkpoint, as they were when it was opened."""

    files: Mapping[str, Stamp]

    @staticmethod
    def of(paths: Iterable[str | Path]) -> Stamps:
        return Stamps({str(path): Stamp.of(Path(path)) for path in paths})

    def check(self) -> None:
        """Raise where a file is no longer what it was."""
        for path, then in self.files.items():
            if (now := Stamp.of(Path(path))) != then:
                raise FormatError(
                    f"{path} changed while it was read: {then} at first, {now} now",
                    hint="convert again when nothing writes to it; nothing was committed",
                )
