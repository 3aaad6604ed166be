"""What lies under a path of the local file system, and where the path leads."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path, PurePath

from intarsia.errors import UsageError
from intarsia.store.base import DirectoryEntry, EntryKind
from intarsia.store.stamp import Stamp
from intarsia.store.system_errors import unreadable

_KINDS: dict[int, EntryKind] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}


def entry_at(path: PurePath, *, follow: bool = True) -> DirectoryEntry | None:
    """What is there, at the end of its links if they are followed; None where nothing is."""
    try:
        found = os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a name with a NUL names nothing
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "other")
    return DirectoryEntry(kind, Stamp.from_stat(found), (found.st_dev, found.st_ino))


def expanded(path: PurePath) -> Path:
    """The path that a user gives, `~` being the home folder; relative ones need a working folder.

    One that ends in no name, `.` or `..`, is the folder that it leads to: its parent would be another's.
    """
    where = Path(os.path.expanduser(path))
    if not where.is_absolute():
        try:
            os.getcwd()
        except OSError as error:
            raise UsageError(
                f"the working folder no longer exists, so {where} cannot be resolved",
                hint="change to a folder that exists, or give an absolute path",
            ) from error
    return where if where.name not in ("", "..") else Path(os.path.realpath(where))


def absolute_path(path: PurePath) -> Path:
    """A path from the root on; links stay."""
    return Path(os.path.abspath(path))


def real_path(path: PurePath) -> Path:
    """Where a path leads, all links followed; the end of it need not be there."""
    here, rest = absolute_path(path), list[str]()
    try:
        while entry_at(here) is None:
            rest.append(here.name)
            here = here.parent
        return here.resolve(strict=True).joinpath(*reversed(rest))
    except OSError as error:
        raise unreadable(here, error) from error
