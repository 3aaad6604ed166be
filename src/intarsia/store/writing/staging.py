"""A destination that becomes visible only when it is whole, whatever store it is in.

Files are written in a hidden folder beside the destination and shown in one step.  A killed run leaves
the destination as it was; what it had begun is cleared by the next run, or continued.  A lock keeps
two runs from writing one destination.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import PurePath
from typing import TYPE_CHECKING

from intarsia.errors import StoreError, UnsafeError, UsageError, few
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import (
    absolute,
    everything_in,
    exists,
    given,
    is_folder,
    names_like,
)
from intarsia.store.registry import store_of
from intarsia.store.system_errors import errors_naming
from intarsia.store.writing.old_contents import (
    OVERWRITE,
    Judge,
    OldContents,
    check_unchanged,
    refuse_existing,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEAD = "job"
"""The file of a journal that says whose it is."""
AWAIT_SECONDS = 20.0
"""How long a network file system may hide a new folder from other hosts."""


class Staging:
    """The files of a destination while they are being written.

    One process owns them (it locks, clears and commits); others, unless it is `alone`, write beside it.
    `judge` refuses, of what a destination holds, whatever may not be replaced.
    """

    def __init__(
        self,
        destination: str | PurePath,
        *,
        overwrite: bool = False,
        judge: Judge = lambda path, contents: None,
        option: str = OVERWRITE,
        alone: bool = True,
    ) -> None:
        self.destination = absolute(given(destination))
        if len(self.destination.parts) < 2:
            raise UsageError(
                f"{self.destination} is the root of its store, and cannot be replaced",
                hint="give a folder inside it",
            )
        self.store = store_of(self.destination)
        if not alone and not self.store.shared:
            raise UsageError(
                f"{self.destination} can be written by one process only, and several are running",
                hint="run without torchrun, or give a local folder that all ranks share",
            )
        with errors_naming(self.destination):
            self.transaction = self.store.transaction(self.destination)
        self.folder = self.transaction.folder
        self.journal = self.transaction.journal
        self.overwrite = overwrite
        self.judge = judge
        self.option = option
        self.old: OldContents | None = None
        self.number: int | None = None
        self.created: set[PurePath] = set()
        self.interrupt: KeyboardInterrupt | None = None
        """One that came when the files were in their place."""

    @property
    def owned(self) -> bool:
        """Whether this process holds the lock."""
        return self.transaction.held

    @property
    def committed(self) -> bool:
        """Whether the files are in their place: they have their number, so an interrupt cannot hide it."""
        try:
            return self._is_in_place()
        except OSError:
            return False

    @property
    def in_place(self) -> str:
        """What is said of a destination that was committed, whatever failed afterwards."""
        return f"{self.destination} is complete and in its place"

    def _is_in_place(self) -> bool:
        there = self.transaction.number_of(self.destination)
        return there is not None and there == self.number

    def check(self, *, resume: bool = False) -> None:
        """Refuse a destination that is in the way; what is to be replaced is noted as it is now."""
        self.transaction.check_place()
        if not self.overwrite:
            refuse_existing(self.destination, resume=resume, option=self.option)
        self.old = None
        if not exists(self.destination):
            return
        self.transaction.check_replaceable()
        if not is_folder(self.destination) or names_like(self.destination):
            self.old = OldContents.of(self.destination)
            try:
                self.judge(self.destination, self.old)
            except UsageError:
                again = "wait for whoever writes there, and run again"
                check_unchanged(self.destination, self.old, hint=again)
                raise
            files = [self.destination / name for name in self.old.files]
            self.transaction.keep_private((file for file in files if exists(file)), None)

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
        with errors_naming(self.destination):
            self.transaction.claim()

    @property
    def folder_number(self) -> int:
        """The number of the folder that is being written."""
        found = self.number_of(self.folder)
        if found is None:
            raise StoreError(f"{self.folder} is gone: it was removed while it was written")
        return found

    def number_of(self, path: PurePath) -> int | None:
        """The number of the folder or of the destination, by which a commit is known; None where nothing is."""
        with errors_naming(path):
            return self.transaction.number_of(path)

    def await_folder(self, number: int) -> None:
        """See the folder that the owner made, as soon as the store shows it to this process."""
        deadline = time.monotonic() + AWAIT_SECONDS
        self.number = number
        while self.number_of(self.folder) != number:
            if time.monotonic() > deadline:
                raise StoreError(
                    f"this rank does not see {self.folder}, which rank 0 has made",
                    hint="write to a file system that all ranks share",
                )
            time.sleep(0.2)

    def clear(self) -> None:
        """Start again, with an empty folder."""
        with errors_naming(self.journal):
            self.store.remove(self.journal)
        with errors_naming(self.folder):
            self.transaction.clear()

    def check_room(self, need_bytes: int, *, resumed: bool = False) -> None:
        """Raise where fewer bytes are free than are still to be written."""
        with errors_naming(self.destination.parent):
            self.transaction.check_room(need_bytes, resumed=resumed)

    def create(
        self, file: str, size_bytes: int, *, keep: bool = False, like: PurePath | None = None
    ) -> None:
        """Make a file of a known length; what it holds already may be kept.

        `like` is the file that it is a copy of, whose readers may read it.
        """
        path = self.folder / file
        if ".." in PurePath(file).parts or self.folder not in path.parents:
            raise UnsafeError(f"{file!r} is outside of the destination")
        self.created.add(path)
        try:
            with errors_naming(path):
                if like is None:
                    self.transaction.create(file, size_bytes, keep=keep)
                else:
                    self.transaction.create_like(file, size_bytes, like)
        except ValueError as error:  # a NUL, or half a character
            raise UnsafeError(f"{file!r} is not a file name") from error

    def write(self, file: str, start_bytes: int, buffers: Sequence[Buffer]) -> None:
        """Write buffers one after another at a position of a file, from any thread."""
        with errors_naming(self.folder, file):
            self.transaction.write(file, start_bytes, buffers)

    @property
    def can_move(self) -> bool:
        """Whether bytes can be moved to its files without being written here."""
        return self.transaction.has_descriptors

    @contextmanager
    def opened_together(self, files: Sequence[str]) -> Iterator[Sequence[int] | None]:
        """Descriptors of files, to which bytes are moved inside; None where its store has none for them."""
        with ExitStack() as held:
            try:
                found = held.enter_context(self.transaction.opened_together(files))
            except OSError as error:
                with errors_naming(self.folder, error.filename):
                    raise
            yield found

    def moved(self, file: str, start_bytes: int, length_bytes: int) -> None:
        """Take note of bytes that were moved to a file."""
        with errors_naming(self.folder, file):
            self.transaction.moved(file, start_bytes, length_bytes)

    def write_small(self, file: str, data: bytes) -> None:
        """Write a whole small file."""
        self.create(file, len(data))
        self.write(file, 0, [data])

    def remove(self, file: str) -> None:
        """Remove a file that an earlier run may have left."""
        with errors_naming(self.folder, file):
            self.store.remove(self.folder / file)

    def copy_in(self, file: str, source: PurePath) -> None:
        """Take over a file unchanged, a part at a time."""
        with Folder(source.parent) as folder:
            self.create(file, folder.size(source.name), like=source)
            for at, data in folder.parts(source.name):
                self.write(file, at, [data])

    def sync(self) -> None:
        """Make every file that this process wrote last, and close it."""
        with errors_naming(self.folder, lasting=True):
            self.transaction.sync()

    def flush(self, *, created: bool = False) -> None:
        """Make last what was written so far, and what was `created`."""
        with errors_naming(self.folder, lasting=True):
            self.transaction.flush(created=created)

    def check_own(self) -> None:
        """Raise where the folder holds more than was created: it would pass for a part of the checkpoint."""
        mine = self.created.union(*(path.parents for path in self.created))
        others = [path for path in everything_in(self.folder) if path not in mine]
        if others:
            names = [str(path.relative_to(self.folder)) for path in others]
            raise UsageError(
                f"{self.folder} holds what this run did not write: {few(names, 4)}; nothing was committed",
                hint="move it away, and see who puts it there; `intarsia convert --resume` then goes on",
            )

    def commit(self) -> list[str]:
        """Show the files at the destination, unless others changed it; what is to be said of it."""
        self.check_own()
        self.sync()
        self.transaction.check_unchanged(self.old)
        self.number = self.folder_number
        try:
            with errors_naming(self.destination):
                self.transaction.commit(self.old)
        except KeyboardInterrupt as stop:
            if not self.committed:
                raise
            self.interrupt = stop
        try:
            return self.settle_down()
        except KeyboardInterrupt as stop:
            self.interrupt = stop
            self.abandon(keep=True)
            return ["interrupted after it was complete: --resume removes the leftovers beside it"]

    def settle_down(self) -> list[str]:
        """Make a commit last, and remove what lies beside the destination.

        What cannot be removed takes nothing from the destination, and the next run tries again.
        """
        try:
            with errors_naming(self.destination, lasting=True):
                self.transaction.settle_down()
        except StoreError as error:
            error.hint = "whether the files have reached the disk is not known"
            raise
        try:
            self.clear_up()
        except StoreError as error:
            return [f"it is complete, but the leftovers beside it could not be removed: {error}"]
        return []

    def clear_up(self) -> None:
        """Remove what lies beside a destination that is whole, and last by what the next run knows that."""
        try:
            with errors_naming(self.folder):
                self.transaction.clear_up(self.old if self._is_in_place() else None)
            for path in names_like(self.journal):
                if path.name != HEAD:
                    with errors_naming(path):
                        self.store.remove(path)
            with errors_naming(self.journal):
                self.store.remove(self.journal)
        finally:
            self.release()

    def release(self) -> None:
        """Let others write the destination."""
        with errors_naming(self.destination):
            self.transaction.release()

    def is_broken(self, error: object) -> bool:
        """Whether an error says that the store which is written to has lost something."""
        if not isinstance(error, StoreError) or not error.lost:
            return False
        return error.path is None or self.transaction.is_part(error.path)

    def abandon(self, *, keep: bool = False) -> bool:
        """Stop; the destination stays as it was, and what was written is removed or kept for later.

        Returns whether it is kept: what a store would not close it may not have.
        """
        try:
            self.transaction.close()
        except OSError:
            keep = False
        keep = keep and self.transaction.failure is None
        if self.owned:
            if not keep and not self.committed:
                for path in (self.journal, self.folder):
                    with suppress(OSError, StoreError):
                        self.store.remove(path)
            with suppress(StoreError):  # something worse is being reported
                self.release()
        return keep
