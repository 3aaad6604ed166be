"""What is there, asked of the file system: where it gives no answer that is an error, and never a "no".

The methods of `Path` answer "no" to whatever goes wrong, from Python 3.13 on: a folder that cannot be
listed would pass for an empty one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from intarsia.errors import UsageError
from intarsia.store.naming import unreadable


def given(path: str | Path) -> Path:
    """The path that a user gives, `~` being the home folder; relative ones need a working folder."""
    where = Path(os.path.expanduser(path))
    if not where.is_absolute():
        try:
            os.getcwd()
        except OSError as error:
            raise UsageError(
                f"the working folder is gone, so {where} leads nowhere",
                hint="change to a folder that exists, or give an absolute path",
            ) from error
    return where


def exists(path: Path) -> bool:
    """Whether anything is there, at the end of its links."""
    return _mode(path) != 0


def is_file(path: Path) -> bool:
    """Whether a file is there, or a link to one."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Whether a folder is there, or a link to one."""
    return stat.S_ISDIR(_mode(path))


def is_link(path: Path) -> bool:
    """Whether the path itself is a symbolic link."""
    return stat.S_ISLNK(_mode(path, follow=False))


def number_of(path: Path) -> tuple[int, int] | None:
    """By which a file or folder is known from all others; None where nothing is."""
    found = _found(path)
    return None if found is None else (found.st_dev, found.st_ino)


def size_of(path: Path) -> int:
    """The length in bytes of a file that is there."""
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise unreadable(path, error) from error


def listed(folder: Path, pattern: str = "*") -> list[Path]:
    """What lies in a folder under names of a pattern, in their order; nothing where there is no folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unreadable(folder, error) from error
    return [folder / name for name in sorted(names) if fnmatchcase(name, pattern)]


def everything_in(folder: Path) -> Iterator[Path]:
    """Whatever lies below a folder; links are not followed."""
    for path in listed(folder):
        yield path
        if stat.S_ISDIR(_mode(path, follow=False)):
            yield from everything_in(path)


def real(path: Path) -> Path:
    """Where a path leads, all links followed; the end of it need not be there."""
    here, rest = Path(os.path.abspath(path)), list[str]()
    while not exists(here):
        rest.append(here.name)
        here = here.parent
    try:
        return here.resolve(strict=True).joinpath(*reversed(rest))
    except OSError as error:
        raise unreadable(here, error) from error


def _mode(path: Path, *, follow: bool = True) -> int:
    """What kind of thing is there; 0 for nothing."""
    found = _found(path, follow=follow)
    return 0 if found is None else found.st_mode


def _found(path: Path, *, follow: bool = True) -> os.stat_result | None:
    """What the file system says of a path; None where nothing is there."""
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a name with a NUL names nothing
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise unreadable(path, error) from error
