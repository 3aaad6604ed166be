"""Reading the files of a local folder at byte offsets."""

from __future__ import annotations

import os
import stat
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.errors import ChangedError, FormatError, IntarsiaError, UnsafeError
from intarsia.quantity import human
from intarsia.store.descriptors import Descriptors, Use
from intarsia.store.looking import is_file
from intarsia.store.naming import unreadable
from intarsia.store.stamp import Stamp, changed, note_stamp

if TYPE_CHECKING:
    from typing_extensions import Buffer


AHEAD_BYTES = 8 << 20
"""How much the disk brings, beyond what is viewed, while that is worked on."""

MAX_SMALL_BYTES = 256 << 20
"""The largest file that is read as a whole, where its reader states no other."""

_SMALL_BYTES = 1 << 20

ROOT = "."
"""The name of the folder itself among its open files."""


class Folder:
    """The files below one folder, read by position from any thread.

    The folder is held open, so that one which takes its place is not read instead, and each file
    is checked to be the one that was opened first, or that `stamps` give.
    `told` are further files that exist in memory alone.
    """

    def __init__(
        self,
        root: str | Path,
        told: Mapping[str, bytes] | None = None,
        stamps: Mapping[str, tuple[int, int, int, int]] | None = None,
    ) -> None:
        self.root = Path(root)
        self._told = told or {}
        self._stamps = {file: Stamp(*stamp) for file, stamp in (stamps or {}).items()}
        self._number: tuple[int, int] | None = None
        self._files = Descriptors(_Opening(self))
        self._rooms = threading.local()
        self._read_bytes = 0

    @property
    def read_bytes(self) -> int:
        """How many bytes were read so far."""
        return self._read_bytes

    def has(self, file: str) -> bool:
        """Whether there is such a file."""
        return is_file(self.root / file)

    def hold(self) -> None:
        """Open the folder now, so that it is the one read from whatever takes its place."""
        try:
            with self._files.use(ROOT):
                pass
        except OSError as error:
            raise unreadable(self.root, error) from error

    def size(self, file: str) -> int:
        """The length of a file in bytes."""
        try:
            with self._files.use(ROOT) as here:
                return os.stat(file, dir_fd=here).st_size
        except OSError as error:
            raise unreadable(self.root / file, error) from error

    def read(self, file: str, start_bytes: int, length_bytes: int) -> bytes:
        """Exactly these bytes of a file."""
        if length_bytes > _SMALL_BYTES and file not in self._told:
            with self._use(file):  # what cannot be opened is not worth the memory
                pass
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
        self.read_each(file, [(start_bytes, memoryview(buffer).cast("B"))])

    def read_each(self, file: str, wanted: Sequence[tuple[int, memoryview]]) -> None:
        """Fill each buffer from a file, starting at its byte, and check once that the file is what it was."""
        if file in self._told:
            held = self._told[file]
            for start_bytes, view in wanted:
                view[:] = held[start_bytes : start_bytes + len(view)]
            return
        with self._use(file) as fd:
            for start_bytes, view in wanted:
                self._fill(file, fd, start_bytes, view)
            self._check(file, fd)
        self._read_bytes += sum([len(view) for _, view in wanted])

    def _fill(self, file: str, fd: int, start_bytes: int, view: memoryview) -> None:
        at = 0
        while at < len(view):
            try:
                count = os.preadv(fd, [view[at:]] if at else [view], start_bytes + at)
            except OSError as error:
                raise unreadable(self.root / file, error) from error
            if count == 0:
                self._check(file, fd)
                raise FormatError(
                    f"{self.root / file} ends at byte {self.size(file):,};"
                    f" bytes [{start_bytes:,}:{start_bytes + len(view):,}) were expected",
                    hint="the file is truncated: copy it again from its source",
                    kind="file-too-short",
                    path=self.root / file,
                )
            at += count

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
            with self._use(file) as fd, suppress(OSError):  # advice that is not taken
                os.posix_fadvise(fd, start_bytes, ahead_bytes, os.POSIX_FADV_WILLNEED)

    def _use(self, file: str) -> _Reading:
        """The descriptor of a file, checked to be the one that it was."""
        return _Reading(self, file)

    def _gone(self, file: str, error: OSError) -> IntarsiaError:
        """What it means that a file cannot be opened: that it is gone since then, or was never there."""
        if file in self._stamps and isinstance(error, FileNotFoundError | NotADirectoryError):
            return ChangedError(
                f"{self.root / file} is gone since the checkpoint was opened",
                hint="another checkpoint may have taken its place: open it again",
                path=self.root / file,
            )
        return unreadable(self.root / file, error)

    def _check(self, file: str, fd: int) -> None:
        """Raise where an open file is no longer what it was."""
        try:
            then, now = self._stamps[file], Stamp.from_stat(os.fstat(fd))
        except OSError as error:
            raise unreadable(self.root / file, error) from error
        if now != then:
            raise changed(self.root / file, then, now)

    def close(self) -> None:
        """Close every file."""
        with suppress(OSError):  # what was read is read
            self._files.close()

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Reading(Use):
    """A guard inside which a file of a folder stays open."""

    __slots__ = ("_folder",)

    def __init__(self, folder: Folder, file: str) -> None:
        super().__init__(folder._files, file)
        self._folder = folder

    def __enter__(self) -> int:
        try:
            return super().__enter__()
        except OSError as error:
            raise self._folder._gone(self._name, error) from error


class _Opening:
    """What opens the files of a folder; it does not keep the folder's object alive."""

    def __init__(self, folder: Folder) -> None:
        self._folder = weakref.ref(folder)

    def __call__(self, file: str) -> int:
        folder = self._folder()
        assert folder is not None, "nobody uses a folder that is gone"
        if file == ROOT:
            return self._open_root(folder)
        with folder._files.use(ROOT) as here:
            fd = open_plain(folder.root / file, file, here)
        try:
            stamp = Stamp.from_stat(os.fstat(fd))
            then = folder._stamps.setdefault(file, stamp)
            if then != stamp:
                raise changed(folder.root / file, then, stamp)
            note_stamp(folder.root / file, stamp)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _open_root(self, folder: Folder) -> int:
        fd = os.open(folder.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            number = found.st_dev, found.st_ino
            if folder._number not in (None, number):
                raise ChangedError(
                    f"{folder.root} is another folder than the one that was opened",
                    hint="another checkpoint has taken its place: open it again",
                    path=folder.root,
                )
        except BaseException:
            os.close(fd)
            raise
        folder._number = number
        return fd


def open_plain(path: Path, name: str | None = None, folder: int | None = None) -> int:
    """A descriptor of a file on disk; a pipe or a device could keep a reader forever.

    `name` is the file's own within an open `folder`, if one is given.
    """
    fd = os.open(name or path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        raise FormatError(f"{path} is no file on disk", hint="give a file, or restore it")
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
