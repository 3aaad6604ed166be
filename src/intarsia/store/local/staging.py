"""A folder that becomes visible only when it is whole.

Files are written in a hidden folder beside the destination, synced, and renamed into place
in one step.  A killed run leaves the destination as it was; what it had begun is cleared by
the next run, or continued.  A lock keeps two runs from writing one destination.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING

from intarsia.errors import StoreError, UnsafeError
from intarsia.quantity import human
from intarsia.store.base import PARTIAL
from intarsia.store.contents import OVERWRITE, Contents, Judge
from intarsia.store.folder import Folder
from intarsia.store.local.destination import (
    EVERYONE,
    check_destination,
    check_place,
    mode_of,
    readers_of,
)
from intarsia.store.local.lock import Lock
from intarsia.store.local.paths import absolute_path
from intarsia.store.local.swap import put_in_place, remove, remove_contents, restore, sync_path
from intarsia.store.local.written_files import WrittenFiles
from intarsia.store.lookup import everything_in, exists, given, is_folder, is_link, listed
from intarsia.store.naming import naming

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEAD = "job"
"""The file of a journal that says whose it is."""
_NAME_BYTES = 255 - len("..intarsia-partial-replaced")
"""The longest name to which what lies beside a destination can add its own."""
AWAIT_SECONDS = 20.0
"""How long a network file system may hide a new folder from other hosts."""


class Staging:
    """The files of a destination while they are being written.

    One process owns the folder (it locks, clears and commits it); others may `join` it.
    `judge` refuses, of what a destination holds, whatever may not be replaced; `readers` are those
    beside the owner who may read what is written, as far as the umask lets them.
    """

    def __init__(
        self,
        destination: str | PurePath,
        *,
        overwrite: bool = False,
        judge: Judge = lambda path, contents: None,
        option: str = OVERWRITE,
    ) -> None:
        self.destination = absolute_path(given(destination))
        name = short_name(self.destination.name)
        self.folder = self.destination.parent / f".{name}{PARTIAL}"
        self.journal = self.folder.with_name(f".{name}.intarsia-journal")
        self.lock = Lock(self.folder.with_name(f".{name}.intarsia-lock"), self.destination)
        self.overwrite = overwrite
        self.judge = judge
        self.option = option
        self.readers = EVERYONE
        self.folder_readers = EVERYONE
        self.old: Contents | None = None
        self.number: int | None = None
        self.files = WrittenFiles(self.folder)

    @property
    def failure(self) -> BaseException | None:
        """What was lost of what this process wrote."""
        return self.files.failure

    @property
    def owned(self) -> bool:
        """Whether this process holds the lock."""
        return self.lock.held

    @property
    def committed(self) -> bool:
        """Whether the folder is in its place: it has its number, so an interrupt cannot hide it."""
        try:
            return self.number == os.lstat(self.destination).st_ino
        except OSError:
            return False

    def keep_private(self, files: Iterable[PurePath], folder: PurePath) -> None:
        """Let only those read what is written who may read these files, and this folder."""
        self.readers &= readers_of(files)
        self.folder_readers &= readers_of([folder])

    def check_place(self) -> None:
        """Refuse a place where no folder can be put, or where another user's run is."""
        check_place(self.destination, (self.lock.path, self.folder, self.journal))

    def check(self, *, resume: bool = False) -> None:
        """Refuse a destination that is in the way; what is to be replaced is noted as it is now."""
        self.check_place()
        check_destination(self.destination, self.overwrite, resume=resume, option=self.option)
        self.old = None
        if exists(self.destination) and (
            not is_folder(self.destination) or listed(self.destination)
        ):
            self.old = Contents.of(self.destination)
            self.judge(self.destination, self.old)
            files = [self.destination / name for name in self.old.files]
            self.readers &= readers_of(file for file in files if exists(file))

    def begin(self, need_bytes: int = 0) -> None:
        """Claim the destination: refuse what is in the way, clear what a killed run left."""
        self.check()
        self.claim()
        self.check()
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
        with suppress(
            OSError
        ):  # an empty one is what a kill left of a journal that was being removed
            self.journal.rmdir()
        for mine in (self.folder, self.journal):
            if is_link(mine):
                raise StoreError(f"{mine} is a symbolic link", hint="remove it")

    @property
    def folder_number(self) -> int:
        """The number in the file system of the folder that is being written."""
        with naming(self.folder):
            return os.stat(self.folder).st_ino

    def await_folder(self, number: int) -> None:
        """See the folder that the owner made, as soon as the file system shows it to this process."""
        deadline = time.monotonic() + AWAIT_SECONDS
        self.number = number
        while not exists(self.folder) or self.folder_number != number:
            if time.monotonic() > deadline:
                raise StoreError(
                    f"this rank does not see {self.folder}, which rank 0 has made",
                    hint="write to a file system that all ranks share",
                )
            time.sleep(0.2)

    def check_links(self) -> None:
        """Raise where what an earlier run left holds a link, through which others' files would be written."""
        for mine in (self.folder, self.journal):
            for path in everything_in(mine):
                if is_link(path):
                    raise StoreError(
                        f"{path} is a symbolic link, which Intarsia does not create",
                        hint=f"remove {mine} and start again without --resume",
                    )

    def clear(self) -> None:
        """Start again, with an empty folder."""
        with naming(self.journal):
            remove(self.journal)
        with naming(self.folder):
            remove(self.folder)
            if not is_folder(self.destination):
                self.folder.mkdir(0o700 | self.folder_readers)
                return
            self.folder.mkdir(
                0o700
            )  # then it gets the mode and the group of the one that it replaces
            there = os.stat(self.destination)
            if there.st_gid != os.stat(self.folder).st_gid:
                with suppress(PermissionError):
                    os.chown(self.folder, -1, there.st_gid)
            os.chmod(self.folder, stat.S_IMODE(there.st_mode) | 0o700)

    @property
    def taken_bytes(self) -> int:
        """How much of the disk the files take that are written so far."""
        with naming(self.folder):
            return sum(os.lstat(path).st_blocks * 512 for path in everything_in(self.folder))

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

    def create(
        self, file: str, size_bytes: int, *, keep: bool = False, mode: int | None = None
    ) -> None:
        """Make a file of a known length; what it holds already may be kept."""
        path = self.folder / file
        if not path.is_relative_to(self.folder) or ".." in path.parts[len(self.folder.parts) :]:
            raise UnsafeError(f"{file!r} is outside of the destination")
        mode = 0o666 & (0o700 | self.readers) if mode is None else mode
        try:
            self.files.create(file, size_bytes, mode, keep=keep)
        except ValueError as error:  # a NUL, or half a character
            raise UnsafeError(f"{file!r} is not a file name") from error

    def write(self, file: str, start_bytes: int, buffers: Sequence[Buffer]) -> None:
        """Write buffers one after another at a position of a file, from any thread."""
        self.files.write(file, start_bytes, buffers)

    def write_small(self, file: str, data: bytes, *, mode: int | None = None) -> None:
        """Write a whole small file."""
        self.create(file, len(data), mode=mode)
        self.write(file, 0, [data])

    def copy_in(self, file: str, source: PurePath) -> None:
        """Take over a file unchanged, a part at a time."""
        with Folder(source.parent) as folder:
            self.create(file, folder.size(source.name), mode=mode_of(source))
            for at, data in folder.parts(source.name):
                self.write(file, at, [data])

    def sync(self) -> None:
        """Make every file that this process wrote durable, and close it."""
        self.files.sync()

    def sync_names(self) -> None:
        """Make the names of the files durable."""
        for folder in {p.parent for p in everything_in(self.folder)} | {self.folder}:
            sync_path(folder)

    def commit(self) -> list[str]:
        """Put the finished folder in the place of the destination; what is to be said of it."""
        self.sync()
        self.sync_names()
        with naming(self.destination):
            self.number = os.lstat(self.folder).st_ino
            try:
                put_in_place(self.folder, self.destination, self.old)
            except KeyboardInterrupt:
                if not self.committed:
                    raise
        try:
            return self.settle_down()
        except KeyboardInterrupt:
            return ["interrupted after it was complete: --resume removes the leftovers beside it"]

    def settle_down(self) -> list[str]:
        """Make the name of a destination durable that is in its place, and remove what lies beside it.

        What cannot be removed takes nothing from the destination, and the next run tries again.
        """
        try:
            sync_path(self.destination.parent)
        except StoreError as error:
            error.hint = f"{self.destination} is complete and in its place; whether it has reached the disk is not known"
            raise
        try:
            self.clear_up()
        except StoreError as error:
            return [f"it is complete, but the leftovers beside it could not be removed: {error}"]
        return []

    def clear_up(self) -> None:
        """Remove what lies beside a destination that is whole, and last by what the next run knows that."""
        try:
            with naming(self.folder):
                if self.old is not None and self.committed:
                    remove_contents(self.folder, self.old)
                else:
                    remove(self.folder)
            for path in listed(self.journal):
                if path.name != HEAD:
                    with naming(path):
                        remove(path)
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
        try:
            self.files.close()
        except OSError:
            keep = False
        keep = keep and self.failure is None
        if self.owned:
            if not keep and not self.committed:
                shutil.rmtree(self.journal, ignore_errors=True)
                shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(StoreError):  # something worse is being told
                self.lock.give_back()
        return keep


def short_name(name: str) -> str:
    """A name, cut and numbered by its hash where nothing could be added to it."""
    data = os.fsencode(name)
    if len(data) <= _NAME_BYTES:
        return name
    number = hashlib.blake2b(data, digest_size=8).hexdigest()
    cut = data[: _NAME_BYTES - len(number) - 1].decode("utf-8", "ignore")
    return f"{cut}~{number}"
