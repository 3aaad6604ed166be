"""One folder put in the place of another, and what a kill in between leaves."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from intarsia.store.reading.lookup import exists, is_folder, is_link
from intarsia.store.system_errors import errors_naming
from intarsia.store.writing.old_contents import OldContents, changed_meanwhile

_HERE, _EXCHANGE = -100, 2
_IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
_NOT_TO_BE_HAD = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
"""What a kernel or a file system says that cannot exchange two names."""


def put_in_place(folder: Path, destination: Path, old: OldContents | None) -> None:
    """Make `folder` the destination; what was there, and is the `old` to be replaced, is at `folder` then.

    Without `old` a rename replaces nothing, or an empty folder.  The two change places in one
    step where the kernel can do that; what is not as it was when it was approved stays.
    """
    if old is None:
        try:
            folder.rename(destination)
        except OSError as error:
            if error.errno in _IN_THE_WAY:
                raise changed_meanwhile(destination, ["it was not there"]) from error
            raise
        return
    if changes := old.changes(OldContents.of(destination)):
        raise changed_meanwhile(destination, changes)
    if not _exchange(folder, destination):
        _change_places(folder, destination)
    if changes := old.changes(OldContents.of(folder)):
        if not _exchange(folder, destination):
            _change_places(folder, destination)
        raise changed_meanwhile(destination, changes)


def _change_places(folder: Path, destination: Path) -> None:
    """Let two paths change places in several steps, or leave both where they are."""
    old = _replaced(folder)
    remove(old)
    try:
        destination.rename(old)
        folder.rename(destination)
        old.rename(folder)
    except BaseException:
        if not exists(destination):
            old.rename(destination)
        elif exists(old) and not exists(folder):
            old.rename(folder)
        raise


def restore(folder: Path, destination: Path) -> None:
    """Undo what a run left that was killed while it put `folder` in place in several steps."""
    old = _replaced(folder)
    if exists(old) and not is_link(old) and not exists(destination):
        old.rename(destination)
    else:
        remove(old)


def remove(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if is_folder(path) and not is_link(path):
        from shutil import rmtree  # of all that looks at files, little removes a folder

        rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_contents(path: Path, old: OldContents) -> None:
    """Remove what lay at a path, and nothing that came to it since."""
    for name in old.files:
        (path / name).unlink(missing_ok=True)
    for name in sorted(old.folders, key=len, reverse=True):
        (path / name).rmdir()
    if is_folder(path):
        path.rmdir()


def _replaced(folder: Path) -> Path:
    return folder.with_name(folder.name + "-replaced")


def _exchange(a: Path, b: Path) -> bool:
    """Let two paths change places in one step; False where that is not to be had."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    if call(_HERE, bytes(a), _HERE, bytes(b), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_TO_BE_HAD:
        return False
    raise OSError(number, os.strerror(number), str(b))


def sync_path(path: Path) -> None:
    """Make a file durable, or a folder's names."""
    with errors_naming(path, lasting=True):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
