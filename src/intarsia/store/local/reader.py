"""Reading local files at byte offsets."""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePath

from intarsia.errors import ChangedError, FormatError
from intarsia.kernel.library import has_kernel
from intarsia.kernel.reading import read_runs
from intarsia.store.base import NEAR_BYTES, OpenFiles, Range, Reader
from intarsia.store.local.descriptors import Descriptors
from intarsia.store.local.vectors import VECTORS, drop_first
from intarsia.store.stamp import Stamp

AHEAD_BYTES = 8 << 20
"""How much the disk brings, beyond what is viewed, while that is worked on."""

_UNUSED = memoryview(bytearray(NEAR_BYTES))
"""Where bytes go that lie between those that are read; ones further apart are read by two calls."""

MANY = 3
"""From so many calls of the system on they are left to the kernel: threads wait for the interpreter after each."""

ROOT = "."
"""The name of the folder itself among its open files."""


class LocalReader(Reader):
    """The files below a local folder.

    The folder is held open, so that one which takes its place is not read instead.
    """

    has_descriptors = True

    def __init__(self, root: PurePath) -> None:
        self.root = root
        self._number: tuple[int, int] | None = None
        self._files = Descriptors(_Opening(self))

    def hold(self) -> None:
        with self._files.use(ROOT):
            pass

    def stamp(self, file: str) -> Stamp:
        with self._files.use(ROOT) as here:
            return Stamp.from_stat(os.stat(file, dir_fd=here))

    def read(self, file: str, ranges: Sequence[Range]) -> Stamp:
        with self._files.use(file) as fd:
            calls = list(in_few_calls(ranges))
            if len(calls) >= MANY and has_kernel():
                read_runs(fd, ranges)
            else:
                for start_bytes, views in calls:
                    _fill(fd, start_bytes, views)
            return Stamp.from_stat(os.fstat(fd))

    @contextmanager
    def opened_together(self, files: Sequence[str]) -> Iterator[OpenFiles | None]:
        with self._files.use_all(files) as found:
            if found is None:
                yield None
            else:
                yield OpenFiles(found, lambda fd: Stamp.from_stat(os.fstat(fd)))

    def prefetch(self, file: str, start_bytes: int, length_bytes: int) -> None:
        """Have the disk bring these bytes, and some that follow."""
        if hasattr(os, "posix_fadvise"):
            ahead_bytes = length_bytes + min(length_bytes, AHEAD_BYTES)
            with self._files.use(file) as fd, suppress(OSError):  # advice that is not taken
                os.posix_fadvise(fd, start_bytes, ahead_bytes, os.POSIX_FADV_WILLNEED)

    def map(self, file: str) -> tuple[mmap.mmap, Stamp]:
        """A file as memory, whose pages are copied when they are written to; and the stamp of the file."""
        with self._files.use(file) as fd:
            private = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
            return private, Stamp.from_stat(os.fstat(fd))

    def close(self) -> None:
        self._files.close()


def in_few_calls(ranges: Sequence[Range]) -> Iterator[tuple[int, list[memoryview]]]:
    """Ranges of a file that nearly follow each other as one, with all of their buffers.

    >>> x, y, z = memoryview(bytes(2)), memoryview(bytes(3)), memoryview(bytes(1))
    >>> [(at, len(views)) for at, views in in_few_calls([(5, x), (7, y), (9999, z)])]
    [(5, 2), (9999, 1)]
    """
    start_bytes = end_bytes = 0
    views: list[memoryview] = []
    for at, view in ranges:
        between = at - end_bytes
        if views and not (0 <= between <= NEAR_BYTES and len(views) + 2 <= VECTORS):
            yield start_bytes, views
            views = []
        if not views:
            start_bytes = at
        elif between:
            views.append(_UNUSED[:between])
        views.append(view)
        end_bytes = at + len(view)
    if views:
        yield start_bytes, views


def _fill(fd: int, start_bytes: int, views: list[memoryview]) -> None:
    left = sum(map(len, views))
    while left:
        count = os.preadv(fd, views, start_bytes)
        if count == 0:
            raise EOFError
        left -= count
        if left:
            start_bytes += count
            drop_first(views, count)


class _Opening:
    """What opens the files of a folder; it does not keep the reader alive."""

    def __init__(self, reader: LocalReader) -> None:
        self._reader = weakref.ref(reader)

    def __call__(self, file: str) -> int:
        reader = self._reader()
        assert reader is not None, "nobody uses a reader that is gone"
        if file == ROOT:
            return self._open_root(reader)
        with reader._files.use(ROOT) as here:
            return open_plain(reader.root / file, file, here)

    def _open_root(self, reader: LocalReader) -> int:
        fd = _open_folder(reader.root)
        try:
            found = os.fstat(fd)
            number = found.st_dev, found.st_ino
            if reader._number not in (None, number):
                raise ChangedError(
                    f"{reader.root} is another folder than the one that was opened",
                    hint="another checkpoint has taken its place: open it again",
                    path=reader.root,
                )
        except BaseException:
            os.close(fd)
            raise
        reader._number = number
        return fd


def _open_folder(path: PurePath) -> int:
    """A descriptor of a folder; one that may not be listed may still be passed through."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        if not hasattr(os, "O_PATH"):
            raise
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def open_plain(path: PurePath, name: str | None = None, folder: int | None = None) -> int:
    """A descriptor of a file on disk; a pipe or a device could keep a reader forever.

    `name` is the file's own within an open `folder`, if one is given.
    """
    fd = os.open(name or path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        raise FormatError(f"{path} is not a regular file", hint="give a file, or restore it")
    except BaseException:
        os.close(fd)
        raise
