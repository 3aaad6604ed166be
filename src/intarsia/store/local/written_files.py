"""The files of a folder while this process writes them, and when they have reached the disk."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.errors import StoreError
from intarsia.store.local.descriptors import Descriptors
from intarsia.store.local.pwrite import WRITEBACK_BYTES, start_write_back, write_all
from intarsia.store.system_errors import errors_naming

if TYPE_CHECKING:
    from typing_extensions import Buffer

_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_SIDE_BY_SIDE = 16
"""How many files are synced at a time where there are many."""


class WrittenFiles:
    """Files below `folder`, written by position from any thread.

    `failure` is the first that bytes were lost by: the kernel reports it once.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failure: BaseException | None = None
        self._files = Descriptors(self._open_file, self._close_file)
        self._created: dict[str, None] = {}
        self._unsynced: dict[str, None] = {}
        self._syncing = threading.Lock()
        self._writing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()
        self._flusher: ThreadPoolExecutor | None = None

    def make(self, file: str, size_bytes: int, mode: int, *, keep: bool = False) -> None:
        """Make a file of a known length; what it holds already may be kept."""
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, _OPEN | os.O_CREAT | (0 if keep else os.O_TRUNC), mode)
        self._created[file] = None
        try:
            os.truncate(fd, size_bytes)
        finally:
            os.close(fd)

    def write(self, file: str, start_bytes: int, buffers: Sequence[Buffer]) -> None:
        """Write buffers one after another at a position of a file.

        One thread at a time writes a file: the kernel admits no more, and those that wait there
        spin instead of reading.
        """
        with self._writing[file], self._files.use(file) as fd:
            count = write_all(fd, start_bytes, buffers)
            self._unsynced[file] = None  # a sync that began before does not cover it
        self.moved(file, start_bytes, count)

    @contextmanager
    def opened_together(self, files: Sequence[str]) -> Iterator[Sequence[int] | None]:
        """Descriptors of files that are written inside; several threads may do that side by side."""
        with self._files.use_all(files) as found:
            try:
                yield found
            finally:
                self._unsynced.update(dict.fromkeys(files if found else ()))

    def moved(self, file: str, start_bytes: int, length_bytes: int) -> None:
        """Send bytes that were written on their way to the disk."""
        if len(self._unsynced) >= self._files.most // 2 and self._syncing.acquire(blocking=False):
            try:
                self._sync_each(list(self._unsynced))
            finally:
                self._syncing.release()
        if length_bytes >= WRITEBACK_BYTES:  # so that the final sync finds little to do
            self.aside(self._start_write_back, file, start_bytes, length_bytes)

    def _start_write_back(self, file: str, start_bytes: int, length_bytes: int) -> None:
        try:
            with errors_naming(self.folder / file, lasting=True), self._files.use(file) as fd:
                start_write_back(fd, start_bytes, length_bytes)
        except StoreError as error:
            self.failure = self.failure or error

    def aside(self, work: Callable[..., object], *arguments: object) -> None:
        """Have something done on the thread that waits for the disk, or here where the system gives none."""
        with self._lock:
            flusher = self._flusher or ThreadPoolExecutor(1, "intarsia-flush")
            try:
                flusher.submit(work, *arguments)
                self._flusher = flusher
                return
            except RuntimeError:
                pass
        work(*arguments)

    def settle(self) -> None:
        """Wait for what is being done aside."""
        if self._flusher is not None:
            self._flusher.shutdown(cancel_futures=True)
            self._flusher = None

    def sync(self) -> None:
        """Make every file durable, and close it.

        A sync that failed is not tried again: the kernel has dropped what it could not write.
        """
        self.settle()
        if self.failure is not None:
            raise self.failure
        self._sync_each(list({**self._unsynced, **self._created}))
        with errors_naming(self.folder, lasting=True):
            self._files.close()

    def _sync_each(self, files: Sequence[str]) -> None:
        """Make files durable; many go side by side, which a disk takes in one go."""
        if len(files) < 2 * _SIDE_BY_SIDE:
            for file in files:
                self._sync_one(file)
            return
        with ThreadPoolExecutor(_SIDE_BY_SIDE, "intarsia-sync") as pool:
            begun = list[Future[None]]()
            try:
                with suppress(RuntimeError):  # the system gives no more threads
                    for file in files:
                        begun.append(pool.submit(self._sync_one, file))
                for done in begun:
                    done.result()
            finally:
                pool.shutdown(cancel_futures=True)
        for file in files[len(begun) :]:
            self._sync_one(file)
        if self.failure is not None:  # of one whose thread did not start, and that another took
            raise self.failure

    def _sync_one(self, file: str) -> None:
        self._unsynced.pop(file, None)
        try:
            with errors_naming(self.folder / file, lasting=True), self._files.use(file) as fd:
                os.fsync(fd)
        except StoreError as error:
            self.failure = self.failure or error
            raise
        self._created.pop(file, None)

    def sync_data(self, *, created: bool = False) -> None:
        """Make durable what was written so far, and what was `created`; the files stay open."""
        with self._syncing:
            if self.failure is not None:
                raise self.failure
            for file in list({**self._unsynced, **self._created} if created else self._unsynced):
                with errors_naming(self.folder / file, lasting=True), self._files.use(file) as fd:
                    os.fdatasync(fd)

    def close(self) -> None:
        """Close the files as they are: what a later run takes up it reads back."""
        self.settle()
        self._created.clear()
        self._unsynced.clear()
        self._files.close()

    def _open_file(self, file: str) -> int:
        return os.open(self.folder / file, _OPEN)

    def _close_file(self, file: str, fd: int) -> None:
        """Close a file to make room for another; what the kernel could not write is known then."""
        try:
            if file in self._unsynced:
                with errors_naming(self.folder / file, lasting=True):
                    os.fsync(fd)
                self._unsynced.pop(file, None)
        except StoreError as error:
            self.failure = self.failure or error
            raise
        finally:
            os.close(fd)
