"""System calls that fail, said with the file and the next step."""

from __future__ import annotations

import errno
from pathlib import PurePath

from intarsia.errors import FormatError, LimitError, StoreError, UnansweredError

_LOST = (errno.EIO, errno.ESTALE)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_TAKEN = (errno.EEXIST, errno.ENOTDIR)
_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_UNREACHED = (
    errno.ESTALE,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENOTCONN,
    errno.EBUSY,
    errno.EINTR,
)
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class errors_naming:
    """A guard that turns a failing system call into an error that names the file and the reason.

    `file` is one below the path.  `lasting`: what fails inside is to make bytes last, so they may be lost whatever is
    shown of them.
    """

    def __init__(self, path: PurePath, file: str = "", *, lasting: bool = False) -> None:
        self.folder = path
        self.file = file
        self.lasting = lasting

    @property
    def path(self) -> PurePath:
        return self.folder / self.file if self.file else self.folder

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno in _LIMITS:
            raise limited(self.path, error) from error
        hint = None
        if error.errno in _FULL:
            hint = "free some space or choose another destination; nothing was committed"
        elif error.errno in _FORBIDDEN:
            hint = "choose a destination that you may write to"
        elif error.errno == errno.EFBIG:
            hint = (
                "raise the limit of a file's length (`ulimit -f`), or choose another destination"
                " or a smaller --max-shard-size"
            )
        elif error.errno in _TAKEN:
            hint = "something is there already, or a part of the path is no folder: choose another"
        raise StoreError(
            f"{self.path}: {error.strerror or error}",
            hint=hint,
            path=self.path,
            lost=self.lasting or error.errno in _LOST,
        ) from error


def unlockable(path: PurePath, error: OSError) -> StoreError:
    """What it means that a file cannot be locked, though no other process holds it."""
    hint = "choose a destination on a file system with locks: without them, two runs could write into one another"
    return StoreError(
        f"{path} cannot be locked: {error.strerror or error}",
        hint=hint if error.errno in _WITHOUT_LOCKS else None,
        path=path,
    )


def unreadable(path: PurePath, error: OSError) -> StoreError | FormatError:
    """What a failing system call on a `path` that is read means."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return absent(path)
    if error.errno in _LIMITS:
        return limited(path, error)
    text, lost = f"{path}: {error.strerror or error}", error.errno in _LOST
    # What a client of a server raises has no number of the system.
    if isinstance(error, ConnectionError | TimeoutError) or error.errno in (None, *_UNREACHED):
        return unanswered(path, text, lost=lost)
    return StoreError(text, path=path, lost=lost)


def unanswered(path: PurePath, text: str, *, lost: bool = False) -> UnansweredError:
    """What it means that a store gave no answer about a `path`, or a part of one."""
    return UnansweredError(text, hint="the store gave no answer: run again", path=path, lost=lost)


def absent(path: PurePath) -> FormatError:
    """What it means that nothing is at a `path` that is read."""
    return FormatError(
        f"{path} is absent",
        hint="restore the file, or use a complete checkpoint",
        kind="file-missing",
        path=path,
    )


def limited(path: PurePath, error: OSError) -> LimitError:
    """What it means that this process may have no more files or memory."""
    files = error.errno in (errno.EMFILE, errno.ENFILE)
    return LimitError(
        f"{path}: {error.strerror or error}",
        hint="raise the limit of open files (`ulimit -n`)"
        if files
        else "free some memory, or lower --memory",
        path=path,
    )
