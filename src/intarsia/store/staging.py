"""A folder that becomes visible only when it is whole.

Files are written in a hidden folder beside the destination, synced, and renamed into place
in one step.  A killed run leaves the destination as it was; what it had begun is cleared by
the next run.  A lock keeps two runs from writing one destination.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.errors import StoreError, UsageError
from intarsia.quantity import human

if TYPE_CHECKING:
    from typing_extensions import Buffer

WRITEBACK_BYTES = 1 << 20
_WRITE = 2
VECTORS = min(1024, os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 16)


class Staging:
    """The files of a destination while they are being written.

    One process owns the folder (it locks, clears and commits it); others may `join` it.
    """

    def __init__(self, destination: str | Path, *, overwrite: bool = False) -> None:
        self.destination = Path(os.path.abspath(destination))
        self.folder = self.destination.parent / f".{self.destination.name}.intarsia-partial"
        self.overwrite = overwrite
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()
        self._lock_fd: int | None = None

    def begin(self, need_bytes: int = 0) -> None:
        """Claim the destination: refuse what is in the way, clear what a killed run left."""
        check_destination(self.destination, self.overwrite)
        parent = self.destination.parent
        with naming(parent):
            parent.mkdir(parents=True, exist_ok=True)
            self._claim()
            for leftover in self.folder.iterdir():
                if leftover.name != ".lock":
                    shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        free = shutil.disk_usage(parent).free
        if need_bytes > free:
            self.abandon()
            raise StoreError(
                f"{human(need_bytes)} are to be written, {human(free)} are free - at {parent}",
                hint="free some space or choose another destination; nothing was written",
            )

    def _claim(self) -> None:
        if self.folder.is_symlink():
            raise StoreError(f"{self.folder} is a symbolic link", hint="remove it")
        self.folder.mkdir(exist_ok=True)
        fd = os.open(
            self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644
        )
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise UsageError(
                f"another process is writing {self.destination}",
                hint="wait for it, or choose another destination",
            ) from error
        self._lock_fd = fd

    def create(self, file: str, size_bytes: int) -> None:
        """Make a file of a known length."""
        path = self.folder / file
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            os.truncate(fd, size_bytes)
        self._open[file] = fd

    def write(self, file: str, start_bytes: int, buffers: Sequence[Buffer]) -> None:
        """Write buffers one after another at a position of a file, from any thread."""
        fd = self._fd(file)
        views = [v for v in (memoryview(b).cast("B") for b in buffers) if len(v)]
        at = start_bytes
        while views:
            with naming(self.folder / file):
                count = os.pwritev(fd, views[:VECTORS], at)
            at += count
            while views and count >= len(views[0]):
                count -= len(views.pop(0))
            if count:
                views[0] = views[0][count:]
        start_writeback(fd, start_bytes, at - start_bytes)

    def write_small(self, file: str, data: bytes) -> None:
        """Write a whole small file."""
        self.create(file, len(data))
        self.write(file, 0, [data])

    def copy_in(self, file: str, source: Path) -> None:
        """Take over a small file unchanged."""
        with naming(source):
            data = source.read_bytes()
        self.write_small(file, data)

    def sync(self) -> None:
        """Make every file written by this process durable, and close it."""
        with self._lock:
            for file, fd in self._open.items():
                with naming(self.folder / file):
                    os.fsync(fd)
                os.close(fd)
            self._open.clear()

    def commit(self) -> None:
        """Put the finished folder in the place of the destination."""
        self.sync()
        with naming(self.destination):
            for folder in {p.parent for p in self.folder.rglob("*")} | {self.folder}:
                sync_folder(folder)
            (self.folder / ".lock").unlink()
            old = None
            if self.destination.exists():
                old = self.folder.with_name(self.folder.name + "-replaced")
                if old.exists():
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
                self.destination.rename(old)
            try:
                self.folder.rename(self.destination)
            except OSError:
                if old is not None:
                    old.rename(self.destination)
                raise
            sync_folder(self.destination.parent)
            if old is not None:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        self._unlock()

    def abandon(self) -> None:
        """Remove what was written; the destination stays as it was."""
        with self._lock:
            for fd in self._open.values():
                os.close(fd)
            self._open.clear()
        if self._lock_fd is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._unlock()

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _fd(self, file: str) -> int:
        fd = self._open.get(file)
        if fd is None:
            with self._lock:
                fd = self._open.get(file)
                if fd is None:
                    with naming(self.folder / file):
                        fd = os.open(self.folder / file, os.O_RDWR | os.O_CLOEXEC)
                    self._open[file] = fd
        return fd


def check_destination(destination: Path, overwrite: bool) -> None:
    """Refuse a destination that is in use, unless it may be replaced."""
    if destination.is_symlink() or (destination.exists() and not overwrite):
        what = "is a symbolic link" if destination.is_symlink() else "exists"
        if destination.is_dir() and not destination.is_symlink() and not any(destination.iterdir()):
            return
        raise UsageError(
            f"{destination} {what}",
            hint="choose another destination, or replace it with --overwrite",
        )


class naming:
    """A guard that turns a failing system call into an error that names the file and the reason."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        hint = None
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "free some space or choose another destination; nothing was committed"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "choose a destination that you may write to"
        raise StoreError(f"{self.path}: {error.strerror or error}", hint=hint) from error


def start_writeback(fd: int, start_bytes: int, length_bytes: int) -> None:
    """Ask the kernel to write these bytes to disk now, so that the final sync finds little to do."""
    if length_bytes >= WRITEBACK_BYTES and _sync_file_range is not None:
        _sync_file_range(fd, start_bytes, length_bytes, _WRITE)


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


_sync_file_range = _find_sync_file_range()


def sync_folder(folder: Path) -> None:
    """Make a folder's names durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
