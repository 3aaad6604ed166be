"""What is there, asked of a store: where it gives no answer that is an error, and never a "no".

The methods of `Path` answer "no" to whatever goes wrong, from Python 3.13 on: a folder that cannot be
listed would pass for an empty one.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from os import fsencode
from pathlib import PurePath
from typing import TypeVar

from intarsia.errors import UsageError
from intarsia.store.address import Address, lost_slash, named
from intarsia.store.base import DirectoryEntry
from intarsia.store.local.paths import absolute_path, entry_at, expanded, real_path
from intarsia.store.registry import store_of
from intarsia.store.stamp import Stamp
from intarsia.store.system_errors import absent, unreadable

P = TypeVar("P", bound=PurePath)


def given(path: str | PurePath) -> PurePath:
    """The name that a user gives: a URL of a known store, or a local path, `~` being the home folder."""
    if isinstance(path, str) and not path:
        raise UsageError("the path is empty", hint="give `.` for the working folder")
    where = named(path)
    try:
        writable = b"\0" not in fsencode(where.as_posix())
    except UnicodeEncodeError:
        writable = False
    if not writable:
        raise UsageError(
            f"{str(where)!r} has a character that no file's name can have",
            hint="give the path without it",
        )
    if isinstance(where, Address):
        store_of(where)
        return where
    if lost := lost_slash(where):
        raise UsageError(
            f"{where} is a URL without one of its slashes, which a path drops",
            hint=f"give {lost} as a text, or the absolute path if it is a local folder",
        )
    return expanded(where)


def exists(path: PurePath) -> bool:
    """Whether anything is there, at the end of its links."""
    return _entry(path) is not None


def is_file(path: PurePath) -> bool:
    """Whether a file is there, or a link to one."""
    found = _entry(path)
    return found is not None and found.kind == "file"


def is_folder(path: PurePath) -> bool:
    """Whether a folder is there, or a link to one."""
    found = _entry(path)
    return found is not None and found.kind == "folder"


def is_link(path: PurePath) -> bool:
    """Whether the path itself is a symbolic link."""
    found = itself(path)
    return found is not None and found.kind == "link"


def number_of(path: PurePath) -> tuple[int, int] | None:
    """By which a file or folder is known from all others; None where nothing is."""
    found = _entry(path)
    return None if found is None else found.number


def stamp_of(path: PurePath) -> Stamp:
    """The stamp of a file that is there."""
    found = _entry(path)
    if found is None:
        raise absent(path)
    return found.stamp


def size_of(path: PurePath) -> int:
    """The length in bytes of a file that is there."""
    return stamp_of(path).size_bytes


def names_like(folder: P, pattern: str = "*") -> list[P]:
    """What lies in a folder under names of a pattern, in their order; nothing where there is no folder."""
    try:
        names = store_of(folder).names(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unreadable(folder, error) from error
    return [folder / name for name in sorted(names) if fnmatchcase(name, pattern)]


def everything_in(folder: P) -> Iterator[P]:
    """Whatever lies below a folder; links are not followed."""
    for path in names_like(folder):
        yield path
        found = itself(path)
        if found is not None and found.kind == "folder":
            yield from everything_in(path)


def absolute(path: PurePath) -> PurePath:
    """A name from the root on; links stay."""
    return path if isinstance(path, Address) else absolute_path(path)


def real(path: PurePath) -> PurePath:
    """Where a path leads, all links followed; the end of it need not be there."""
    return path if isinstance(path, Address) else real_path(path)


def _entry(path: PurePath) -> DirectoryEntry | None:
    try:
        return store_of(path).look(path)
    except OSError as error:
        raise unreadable(path, error) from error


def itself(path: PurePath) -> DirectoryEntry | None:
    """What is there, be it a link; local files alone may be links."""
    if isinstance(path, Address):
        return _entry(path)
    try:
        return entry_at(path, follow=False)
    except OSError as error:
        raise unreadable(path, error) from error
