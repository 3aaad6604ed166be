"""Local files that become a destination in one step: a hidden folder beside it, synced and renamed into place."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePath

from intarsia.errors import StoreError
from intarsia.quantity import human
from intarsia.store.base import Store, Transaction
from intarsia.store.local.destination import (
    EVERYONE,
    check_owners,
    check_place,
    mode_of,
    readers_of,
)
from intarsia.store.local.lock import Lock
from intarsia.store.local.paths import entry_at
from intarsia.store.local.swap import put_in_place, remove, remove_contents, restore, sync_path
from intarsia.store.local.written_files import WrittenFiles
from intarsia.store.reading.lookup import everything_in, is_folder, is_link
from intarsia.store.system_errors import errors_naming
from intarsia.store.writing.hidden_names import LOCK, beside
from intarsia.store.writing.old_contents import OldContents

_STAYS = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
"""What a system says of a folder that is not there, not empty, or none."""


class LocalTransaction(WrittenFiles, Transaction):
    """Files in a folder beside a local destination.

    `readers` are those beside the owner who may read what is written, as far as the umask lets them.
    """

    has_descriptors = True
    destination: Path
    folder: Path
    journal: Path

    def __init__(self, store: Store, destination: PurePath) -> None:
        Transaction.__init__(self, store, Path(destination))
        WrittenFiles.__init__(self, self.folder)
        self.lock = Lock(beside(self.destination, LOCK), self.destination)
        self.readers = self.folder_readers = EVERYONE

    @property
    def held(self) -> bool:
        return self.lock.held

    def check_place(self) -> None:
        check_place(self.destination, (self.lock.path, self.folder, self.journal))

    def check_replaceable(self) -> None:
        check_owners(self.destination)

    def check_unchanged(self, old: OldContents | None) -> None:
        """Nothing: whoever puts the folder in place looks at the moment of it."""

    def check_left(self) -> None:
        """Raise where what an earlier run left holds a link, through which others' files would be written."""
        for mine in (self.folder, self.journal):
            for path in everything_in(mine):
                if is_link(path):
                    raise StoreError(
                        f"{path} is a symbolic link, which Intarsia does not create",
                        hint=f"remove {mine} and start again without --resume",
                    )

    def keep_private(self, files: Iterable[PurePath], folder: PurePath | None) -> None:
        self.readers &= readers_of(files)
        if folder is not None:
            self.folder_readers &= readers_of([folder])

    def check_room(self, need_bytes: int, *, resumed: bool = False) -> None:
        free = shutil.disk_usage(self.destination.parent).free
        if resumed:
            taken = (os.lstat(path).st_blocks * 512 for path in everything_in(self.folder))
            need_bytes = max(0, need_bytes - sum(taken))
        if need_bytes > free:
            raise StoreError(
                f"{human(need_bytes)} are to be written, {human(free)} are free",
                at=self.destination.parent,
                hint="free some space or choose another destination; nothing was written",
            )

    def claim(self) -> None:
        """Lock the destination, and undo what a run left that was killed while it replaced it."""
        parent = self.destination.parent
        with errors_naming(parent):
            parent.mkdir(parents=True, exist_ok=True)
            self.lock.take()
            restore(self.folder, self.destination)
        # an empty one is what a kill left of a journal that was being removed
        with errors_naming(self.journal):
            try:
                self.journal.rmdir()
            except OSError as error:
                if error.errno not in _STAYS:
                    raise
        for mine in (self.folder, self.journal):
            if is_link(mine):
                raise StoreError(f"{mine} is a symbolic link", hint="remove it")

    def release(self) -> None:
        self.lock.give_back()

    def clear(self) -> None:
        remove(self.folder)
        if not is_folder(self.destination):
            self.folder.mkdir(0o700 | self.folder_readers)
            return
        self.folder.mkdir(0o700)  # then it gets the mode and the group of the one that it replaces
        there = os.stat(self.destination)
        if there.st_gid != os.stat(self.folder).st_gid:
            with suppress(PermissionError):
                os.chown(self.folder, -1, there.st_gid)
        os.chmod(self.folder, stat.S_IMODE(there.st_mode) | 0o700)

    def number_of(self, path: PurePath) -> int | None:
        found = entry_at(path, follow=False)
        return None if found is None else found.stamp.inode

    def create(self, file: str, size_bytes: int, *, keep: bool = False) -> None:
        self.make(file, size_bytes, 0o666 & (0o700 | self.readers), keep=keep)

    def create_like(self, file: str, size_bytes: int, source: PurePath) -> None:
        mode = mode_of(source)
        if mode is None:
            self.create(file, size_bytes)
        else:
            self.make(file, size_bytes, mode)

    def flush(self, *, created: bool = False) -> None:
        self.sync_data(created=created)
        self._sync_names()
        sync_path(self.destination.parent)

    def _sync_names(self) -> None:
        for folder in {p.parent for p in everything_in(self.folder)} | {self.folder}:
            sync_path(folder)

    def commit(self, old: OldContents | None) -> None:
        self._sync_names()
        put_in_place(self.folder, self.destination, old)

    def settle_down(self) -> None:
        sync_path(self.destination.parent)

    def clear_up(self, old: OldContents | None) -> None:
        if old is None:
            remove(self.folder)
        else:
            remove_contents(self.folder, old)

    def is_part(self, path: PurePath) -> bool:
        return path in (self.lock.path, self.destination.parent) or super().is_part(path)
