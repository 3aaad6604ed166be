"""Writing to a store that is not the local one: what a conversion asks of a destination, of any transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

from intarsia.errors import UnsafeError, UsageError
from intarsia.store.contents import Contents, Judge, changed_meanwhile, refuse_existing
from intarsia.store.folder import Folder
from intarsia.store.lookup import exists
from intarsia.store.naming import naming
from intarsia.store.registry import store_of

if TYPE_CHECKING:
    from typing_extensions import Buffer


class StoreStaging:
    """The files of a destination in another store, while one process writes them; it keeps no journal."""

    folder_number = 0

    def __init__(self, destination: PurePath, *, overwrite: bool, judge: Judge) -> None:
        self.destination = destination
        self.overwrite = overwrite
        self.judge = judge
        self.old: Contents | None = None
        self.owned = self.committed = False
        with naming(destination):
            self._files = store_of(destination).transaction(destination, overwrite=overwrite)

    @property
    def folder(self) -> PurePath:
        """Where the files are until they are committed."""
        return self._files.folder

    def check_place(self) -> None:
        """Nothing: such a store has neither links nor mounts."""

    def check(self, *, resume: bool = False) -> None:
        """Refuse a destination that is in the way; what is to be replaced is noted as it is now."""
        if resume:
            raise UsageError(
                f"{self.destination} cannot be resumed: only local folders have a journal",
                hint="run again without --resume",
            )
        if not self.overwrite:
            refuse_existing(self.destination)
        self.old = None
        if exists(self.destination):
            self.old = Contents.of(self.destination)
            self.judge(self.destination, self.old)

    def keep_private(self, files: Iterable[PurePath], folder: PurePath) -> None:
        """Nothing: who may read is the store's own business."""

    def claim(self) -> None:
        """Lock the destination."""
        with naming(self.destination):
            self._files.claim()
        self.owned = True

    def clear(self) -> None:
        """Start again."""
        with naming(self.folder):
            self._files.clear()

    def check_room(self, need_bytes: int) -> None:
        """Nothing: a store that is full says so when it is written."""

    def await_folder(self, number: int) -> None:
        """Nothing: one process writes."""

    def create(self, file: str, size_bytes: int) -> None:
        """Make a file of a known length."""
        if ".." in PurePath(file).parts or not (self.folder / file).is_relative_to(self.folder):
            raise UnsafeError(f"{file!r} is outside of the destination")
        with naming(self.folder / file):
            self._files.create(file, size_bytes)

    def write(self, file: str, start_bytes: int, buffers: Sequence[Buffer]) -> None:
        """Write buffers one after another at a position of a file, from any thread."""
        with naming(self.folder / file):
            self._files.write(file, start_bytes, buffers)

    def write_small(self, file: str, data: bytes) -> None:
        """Write a whole small file."""
        self.create(file, len(data))
        self.write(file, 0, [data])

    def copy_in(self, file: str, source: PurePath) -> None:
        """Take over a file unchanged, a part at a time."""
        with Folder(source.parent) as folder:
            self.create(file, folder.size(source.name))
            for at, data in folder.parts(source.name):
                self.write(file, at, [data])

    def sync(self) -> None:
        """Nothing: a commit makes all of it last."""

    def commit(self) -> list[str]:
        """Show the files at the destination, unless others changed it meanwhile; what is to be said of it."""
        now = Contents.of(self.destination) if exists(self.destination) else None
        if now != self.old:
            nothing = Contents({}, frozenset())
            raise changed_meanwhile(self.destination, (self.old or nothing).changes(now or nothing))
        with naming(self.destination):
            notes = self._files.commit()
        self.committed = True
        return notes

    def abandon(self, *, keep: bool = False) -> bool:
        """Stop, and leave the destination as it was."""
        if self.owned and not self.committed:
            with naming(self.folder):
                self._files.abandon()
        self.owned = False
        return False
