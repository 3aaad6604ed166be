"""System calls that fail, said with the file and the next step."""

from __future__ import annotations

import errno
from pathlib import Path

from intarsia.errors import StoreError


class naming:
    """A guard that turns a failing system call into an error that names the file and the reason."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        hint = None
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "free some space or choose another destination; nothing was committed"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            hint = "choose a destination that you may write to"
        raise StoreError(
            f"{self.path}: {error.strerror or error}", hint=hint, path=self.path
        ) from error
