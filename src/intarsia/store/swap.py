"""One folder put in the place of another, and what a kill in between leaves."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

from intarsia.store.looking import exists, is_folder, is_link
from intarsia.store.naming import naming

_HERE, _EXCHANGE = -100, 2


def put_in_place(folder: Path, destination: Path) -> None:
    """Make `folder` the destination; what was there is at `folder` then.

    The two change places in one step where the kernel can do that.
    """
    if not exists(destination):
        folder.rename(destination)
    elif not _exchange(folder, destination):
        old = _replaced(folder)
        remove(old)
        destination.rename(old)
        try:
            folder.rename(destination)
        except OSError:
            old.rename(destination)
            raise
        old.rename(folder)


def restore(folder: Path, destination: Path) -> None:
    """Undo what a run left that was killed while it put `folder` in place in two steps."""
    old = _replaced(folder)
    if exists(old) and not is_link(old) and not exists(destination):
        old.rename(destination)
    else:
        remove(old)


def remove(path: Path) -> None:
    """Remove a file or a folder, if there is one."""
    if is_folder(path) and not is_link(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _replaced(folder: Path) -> Path:
    return folder.with_name(folder.name + "-replaced")


def _exchange(a: Path, b: Path) -> bool:
    """Let two paths change places in one step; False where that is not to be had."""
    call = getattr(ctypes.CDLL(None), "renameat2", None)
    return call is not None and call(_HERE, bytes(a), _HERE, bytes(b), _EXCHANGE) == 0


def sync_path(path: Path) -> None:
    """Make a file durable, or a folder's names."""
    with naming(path, lasting=True):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
