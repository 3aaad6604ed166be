"""Reading the files of a local folder at byte offsets."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.errors import FormatError, UnsafeError
from intarsia.quantity import human
from intarsia.store.looking import is_file, size_of
from intarsia.store.naming import unreadable

if TYPE_CHECKING:
    from typing_extensions import Buffer


AHEAD_BYTES = 8 << 20
"""How much the disk brings, beyond what is viewed, while that is worked on."""

MAX_SMALL_BYTES = 256 << 20
"""The largest file that is read as a whole, where its reader states no other."""


class Folder:
    """The files below one folder, each opened once and read by position from any thread.

    `told` are further files that exist in memory alone.
    """

    def __init__(self, root: str | Path, told: Mapping[str, bytes] | None = None) -> None:
        self.root = Path(root)
        self._told = told or {}
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()
        self._rooms = threading.local()
        self._read_bytes = 0

    @property
    def read_bytes(self) -> int:
        """How many bytes were read so far."""
        return self._read_bytes

    def has(self, file: str) -> bool:
        """Whether there is such a file."""
        return is_file(self.root / file)

    def size(self, file: str) -> int:
        """The length of a file in bytes."""
        return size_of(self.root / file)

    def read(self, file: str, start_bytes: int, length_bytes: int) -> bytes:
        """Exactly these bytes of a file."""
        if file not in self._told:
            self._fd(file)  # what cannot be opened is not worth the memory
        buffer = bytearray(length_bytes)
        self.read_into(file, start_bytes, buffer)
        return bytes(buffer)

    def read_all(self, file: str, most_bytes: int = MAX_SMALL_BYTES) -> bytes:
        """A whole small file."""
        return self.read_small(file, 0, self.size(file), most_bytes)

    def read_small(
        self, file: str, start_bytes: int, length_bytes: int, most_bytes: int = MAX_SMALL_BYTES
    ) -> bytes:
        """Bytes that are to be understood as a whole; a file's own word is not enough for their size."""
        if length_bytes > most_bytes:
            raise FormatError(
                f"{self.root / file} holds {human(length_bytes)} where at most"
                f" {human(most_bytes)} are read at once"
            )
        return self.read(file, start_bytes, length_bytes)

    def read_into(self, file: str, start_bytes: int, buffer: Buffer) -> None:
        """Fill `buffer` from a file, starting at `start_bytes`."""
        view = memoryview(buffer).cast("B")
        if file in self._told:
            view[:] = self._told[file][start_bytes : start_bytes + len(view)]
            return
        fd = self._fd(file)
        at = 0
        while at < len(view):
            try:
                count = os.preadv(fd, [view[at:]], start_bytes + at)
            except OSError as error:
                raise unreadable(self.root / file, error) from error
            if count == 0:
                raise FormatError(
                    f"{self.root / file} ends at byte {self.size(file):,};"
                    f" bytes [{start_bytes:,}:{start_bytes + len(view):,}) were expected",
                    hint="the file is truncated: copy it again from its source",
                    kind="file-too-short",
                    path=self.root / file,
                )
            at += count
        self._read_bytes += len(view)

    def view(self, file: str, start_bytes: int, length_bytes: int) -> memoryview:
        """Exactly these bytes of a file, until this thread views others: they lie where those will.

        A mapping would save a copy, and a file that is cut off meanwhile would end the process.
        """
        if file in self._told:
            return memoryview(self._told[file])[start_bytes : start_bytes + length_bytes]
        if len(getattr(self._rooms, "room", b"")) < length_bytes:
            self._rooms.room = bytearray(length_bytes)
        found = memoryview(self._rooms.room)[:length_bytes]
        self.read_into(file, start_bytes, found)
        return found

    def foretell(self, file: str, start_bytes: int, length_bytes: int) -> None:
        """Have the disk bring these bytes, and some that follow, while others are worked on."""
        if file not in self._told and hasattr(os, "posix_fadvise"):
            ahead_bytes = length_bytes + min(length_bytes, AHEAD_BYTES)
            with suppress(OSError):  # advice that is not taken
                os.posix_fadvise(self._fd(file), start_bytes, ahead_bytes, os.POSIX_FADV_WILLNEED)

    def _fd(self, file: str) -> int:
        fd = self._open.get(file)
        if fd is None:
            with self._lock:
                fd = self._open.get(file)
                if fd is None:
                    try:
                        fd = open_plain(self.root / file)
                    except OSError as error:
                        raise unreadable(self.root / file, error) from error
                    self._open[file] = fd
        return fd

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            for fd in self._open.values():
                with suppress(OSError):  # what was read is read
                    os.close(fd)
            self._open.clear()

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_plain(path: Path) -> int:
    """A descriptor of a file on disk; a pipe or a device could keep a reader forever."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        raise FormatError(f"{path} is no file on disk", hint="remove it, or restore the file")
    except BaseException:
        os.close(fd)
        raise


def check_name(name: object, where: str) -> str:
    """A file name that a checkpoint gives: one that stays in the checkpoint's own folder."""
    if not isinstance(name, str) or not name or "\0" in name or len(name) > 255:
        shown = repr(name[:80]) if isinstance(name, str) else f"a {type(name).__name__}"
        raise FormatError(f"{shown} is no file name - at {where}")
    if name in (".", "..") or "/" in name or "\\" in name or ":" in name:
        raise UnsafeError(f"{name!r} is no file name: it lies outside its folder - at {where}")
    try:
        fits = len(os.fsencode(name)) <= 255
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise FormatError(f"{name[:80]!r} is no file name - at {where}")
    return name


def check_inside(name: object, where: str) -> str:
    """A relative path that a checkpoint gives: one that stays below the checkpoint's own folder."""
    inside = isinstance(name, str) and all(name.split("/"))
    for part in str(name).split("/") if inside else (name,):
        check_name(part, where)
    return str(name)
