"""A folder that becomes visible only when it is whole.

Files are written in a hidden folder beside the destination, synced, and renamed into place
in one step.  A killed run leaves the destination as it was; what it had begun is cleared by
the next run, or continued.  A lock keeps two runs from writing one destination.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.errors import StoreError, UnsafeError, UsageError
from intarsia.quantity import human
from intarsia.store.local import open_plain
from intarsia.store.lock import Lock
from intarsia.store.looking import everything_in, exists, is_folder, is_link, listed
from intarsia.store.naming import naming
from intarsia.store.pwrite import WRITEBACK_BYTES, start_write_back, write_all
from intarsia.store.swap import put_in_place, remove, restore, sync_path

if TYPE_CHECKING:
    from typing_extensions import Buffer

PARTIAL = ".intarsia-partial"
"""How the name of a folder ends that is not whole yet."""
_COPIED_BYTES = 8 << 20
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Staging:
    """The files of a destination while they are being written.

    One process owns the folder (it locks, clears and commits it); others may `join` it.
    """

    def __init__(self, destination: str | Path, *, overwrite: bool = False) -> None:
        self.destination = Path(os.path.abspath(destination))
        self.folder = self.destination.parent / f".{self.destination.name}{PARTIAL}"
        self.journal = self.folder.with_name(f".{self.destination.name}.intarsia-journal")
        lock = self.folder.with_name(f".{self.destination.name}.intarsia-lock")
        self.lock = Lock(lock, self.destination)
        self.overwrite = overwrite
        self.committed = False
        self._open: dict[str, int] = {}
        self._writing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()
        self._flusher: ThreadPoolExecutor | None = None
        self.failure: BaseException | None = None

    @property
    def owned(self) -> bool:
        """Whether this process holds the lock."""
        return self.lock.held

    def begin(self, need_bytes: int = 0) -> None:
        """Claim the destination: refuse what is in the way, clear what a killed run left."""
        check_destination(self.destination, self.overwrite)
        self.claim()
        check_destination(self.destination, self.overwrite)
        self.clear()
        try:
            self.check_room(need_bytes)
        except StoreError:
            self.abandon()
            raise

    def claim(self) -> None:
        """Lock the destination, and undo what a run left that was killed while it replaced it."""
        parent = self.destination.parent
        with naming(parent):
            parent.mkdir(parents=True, exist_ok=True)
            self.lock.take()
            restore(self.folder, self.destination)
        for mine in (self.folder, self.journal):
            if is_link(mine):
                raise StoreError(f"{mine} is a symbolic link", hint="remove it")

    def check_links(self) -> None:
        """Raise where what an earlier run left holds a link, through which others' files would be written."""
        for mine in (self.folder, self.journal):
            for path in everything_in(mine):
                if is_link(path):
                    raise StoreError(
                        f"{path} is a symbolic link, which no run of Intarsia has made",
                        hint=f"remove {mine} and start anew without --resume",
                    )

    def clear(self) -> None:
        """Begin anew, with an empty folder."""
        with naming(self.journal):
            remove(self.journal)
        with naming(self.folder):
            remove(self.folder)
            self.folder.mkdir()

    def check_room(self, need_bytes: int) -> None:
        """Raise where fewer bytes are free than are still to be written."""
        with naming(self.destination.parent):
            free = shutil.disk_usage(self.destination.parent).free
        if need_bytes > free:
            raise StoreError(
                f"{human(need_bytes)} are to be written, {human(free)} are free"
                f" - at {self.destination.parent}",
                hint="free some space or choose another destination; nothing was written",
            )

    def create(self, file: str, size_bytes: int, *, keep: bool = False) -> None:
        """Make a file of a known length; what it holds already may be kept."""
        path = self.folder / file
        if not path.is_relative_to(self.folder) or ".." in path.parts[len(self.folder.parts) :]:
            raise UnsafeError(f"{file!r} lies outside of the destination")
        try:
            with naming(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                fd = os.open(path, _OPEN | (0 if keep else os.O_TRUNC), 0o644)
                self._open[file] = fd
                os.truncate(fd, size_bytes)
        except ValueError as error:  # a NUL, or half a character
            raise UnsafeError(f"{file!r} is no name of a file") from error

    def write(self, file: str, start_bytes: int, buffers: Sequence[Buffer]) -> None:
        """Write buffers one after another at a position of a file, from any thread.

        One thread at a time writes a file: the kernel admits no more, and those that wait there
        spin instead of reading.
        """
        with self._writing[file]:
            fd = self._fd(file)
            with naming(self.folder / file):
                count = write_all(fd, start_bytes, buffers)
        if count >= WRITEBACK_BYTES:  # so that the final sync finds little to do
            self.aside(self._start_write_back, file, fd, start_bytes, count)

    def _start_write_back(self, file: str, fd: int, start_bytes: int, length_bytes: int) -> None:
        try:
            with naming(self.folder / file, lasting=True):
                start_write_back(fd, start_bytes, length_bytes)
        except StoreError as error:
            self.failure = self.failure or error

    def aside(self, work: Callable[..., object], *arguments: object) -> None:
        """Have something done on the thread that waits for the disk."""
        with self._lock:
            if self._flusher is None:
                self._flusher = ThreadPoolExecutor(1, "intarsia-flush")
            self._flusher.submit(work, *arguments)

    def write_small(self, file: str, data: bytes) -> None:
        """Write a whole small file."""
        self.create(file, len(data))
        self.write(file, 0, [data])

    def copy_in(self, file: str, source: Path) -> None:
        """Take over a file unchanged, a part at a time."""
        with naming(source), os.fdopen(open_plain(source), "rb") as opened:
            length = os.fstat(opened.fileno()).st_size
            self.create(file, length)
            at = 0
            while data := opened.read(min(_COPIED_BYTES, length - at)):
                self.write(file, at, [data])
                at += len(data)

    def sync(self) -> None:
        """Make every file written by this process durable, and close it.

        A sync that failed is not tried again: the kernel has dropped what it could not write.
        """
        self.settle()
        if self.failure is not None:
            raise self.failure
        with self._lock:
            while self._open:
                file, fd = next(iter(self._open.items()))
                try:
                    with naming(self.folder / file, lasting=True):
                        os.fsync(fd)
                        os.close(self._open.pop(file))
                except StoreError as error:
                    self.failure = error
                    raise

    def sync_data(self) -> None:
        """Make durable what was written so far; the files stay open."""
        with self._lock:
            held = list(self._open.items())
        for file, fd in held:
            with naming(self.folder / file, lasting=True):
                os.fdatasync(fd)

    def sync_names(self) -> None:
        """Make the names of the files durable."""
        for folder in {p.parent for p in everything_in(self.folder)} | {self.folder}:
            sync_path(folder)

    def commit(self) -> list[str]:
        """Put the finished folder in the place of the destination; what is to be said of it."""
        self.sync()
        self.sync_names()
        with naming(self.destination):
            put_in_place(self.folder, self.destination)
        self.committed = True
        return self.settle_down()

    def settle_down(self) -> list[str]:
        """Make the name of a destination durable that is in its place, and remove what lies beside it.

        What cannot be removed takes nothing from the destination, and the next run tries again.
        """
        try:
            sync_path(self.destination.parent)
        except StoreError as error:
            error.hint = f"{self.destination} is whole and in its place; whether that is on disk is not known"
            raise
        try:
            self.clear_up()
        except StoreError as error:
            return [f"it is whole, but what lies beside it could not be removed: {error}"]
        return []

    def clear_up(self) -> None:
        """Remove what lies beside a destination that is whole, the journal last."""
        try:
            with naming(self.folder):
                remove(self.folder)
            with naming(self.journal):
                remove(self.journal)
        finally:
            self.lock.give_back()

    def is_broken(self, error: object) -> bool:
        """Whether an error says that the disk which is written to has lost something."""
        if not isinstance(error, StoreError) or not error.lost:
            return False
        mine = (self.folder, self.journal, self.destination)
        return (
            error.path is None
            or error.path in (self.lock.path, self.destination.parent)
            or any(error.path.is_relative_to(path) for path in mine)
        )

    def abandon(self, *, keep: bool = False) -> bool:
        """Stop; the destination stays as it was, and what was written is removed or kept for later.

        Returns whether it is kept: what a file system would not close it may not have.
        """
        self.settle()
        with self._lock:
            for fd in self._open.values():
                try:
                    os.close(fd)
                except OSError:
                    keep = False
            self._open.clear()
        keep = keep and self.failure is None
        if self.owned:
            if not keep and not self.committed:
                shutil.rmtree(self.journal, ignore_errors=True)
                shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(StoreError):  # something worse is being told
                self.lock.give_back()
        return keep

    def settle(self) -> None:
        """Wait for what is being done aside."""
        if self._flusher is not None:
            self._flusher.shutdown(cancel_futures=True)
            self._flusher = None

    def _fd(self, file: str) -> int:
        fd = self._open.get(file)
        if fd is None:
            with self._lock:
                fd = self._open.get(file)
                if fd is None:
                    with naming(self.folder / file):
                        fd = os.open(self.folder / file, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                    self._open[file] = fd
        return fd


def check_destination(destination: Path, overwrite: bool, *, resume: bool = False) -> None:
    """Refuse a destination that is in use, unless it may be replaced.

    `resume`: it was to be continued, and nothing is there to continue.
    """
    if is_link(destination):
        raise UsageError(f"{destination} is a symbolic link", hint="give the folder it leads to")
    if not exists(destination) or overwrite:
        return
    if not is_folder(destination) or listed(destination):
        if resume:
            raise UsageError(
                f"{destination} exists, and nothing was left to resume",
                hint="an earlier run may have finished it, which `intarsia verify SOURCE DESTINATION`"
                " tells; or choose another destination, or replace it with --overwrite",
            )
        raise UsageError(
            f"{destination} exists",
            hint="choose another destination, or replace it with --overwrite",
        )
