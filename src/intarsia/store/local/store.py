"""Local files as a store."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, ClassVar

from intarsia.store.base import DirectoryEntry, Store
from intarsia.store.local.paths import entry_at
from intarsia.store.local.reader import LocalReader
from intarsia.store.local.swap import remove, sync_path
from intarsia.store.reading.lookup import names_like

if TYPE_CHECKING:
    from intarsia.store.local.transaction import LocalTransaction


class LocalStore(Store):
    """The files of this machine, under their paths."""

    shared: ClassVar[bool] = True

    def look(self, path: PurePath) -> DirectoryEntry | None:
        return entry_at(path)

    def names(self, folder: PurePath) -> list[str]:
        return os.listdir(folder)

    def reader(self, folder: PurePath) -> LocalReader:
        return LocalReader(folder)

    def transaction(self, destination: PurePath) -> LocalTransaction:
        from intarsia.store.local.transaction import LocalTransaction  # whoever reads needs none

        return LocalTransaction(self, destination)

    def put(self, path: PurePath, data: bytes, *, lasting: bool = True) -> None:
        whole = Path(path)
        whole.parent.mkdir(parents=True, exist_ok=True)
        fresh = whole.with_name(f".{path.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)  # another's, or a link
        try:
            with open(fresh, "xb") as file:
                file.write(data)
                file.flush()
                if lasting:
                    os.fsync(file.fileno())
            fresh.rename(whole)
        except BaseException:
            with suppress(OSError):
                fresh.unlink()
            raise
        if lasting:
            sync_path(whole.parent)

    def remove(self, path: PurePath) -> None:
        remove(Path(path))

    def log(self, path: PurePath) -> LocalLog:
        return LocalLog(Path(path))


_OPEN = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class LocalLog:
    """Lines that the kernel has as soon as they are added; a kill leaves at most a torn last one."""

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        self._fd = os.open(path, _OPEN, 0o644)

    def append(self, line: bytes) -> None:
        while line:
            line = line[os.write(self._fd, line) :]

    def sync(self) -> None:
        """Make it last, and what lies beside it."""
        for path in names_like(self._folder):
            sync_path(path)
        sync_path(self._folder)

    def close(self) -> None:
        os.close(self._fd)
