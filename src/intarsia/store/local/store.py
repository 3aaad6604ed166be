"""Local files as a store."""

from __future__ import annotations

import os
from pathlib import PurePath

from intarsia.store.base import Entry
from intarsia.store.local.paths import entry_at
from intarsia.store.local.reader import LocalReader
from intarsia.store.local.staging import Staging


class LocalStore:
    """The files of this machine, under their paths."""

    def look(self, path: PurePath) -> Entry | None:
        return entry_at(path)

    def names(self, folder: PurePath) -> list[str]:
        return os.listdir(folder)

    def reader(self, folder: PurePath) -> LocalReader:
        return LocalReader(folder)

    def transaction(self, destination: PurePath, *, overwrite: bool = False) -> Staging:
        return Staging(destination, overwrite=overwrite)
