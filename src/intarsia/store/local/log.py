"""A local file that grows by lines."""

from __future__ import annotations

import os
from pathlib import Path

from intarsia.store.local.swap import sync_path
from intarsia.store.reading.lookup import listed

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
        for path in listed(self._folder):
            sync_path(path)
        sync_path(self._folder)

    def close(self) -> None:
        os.close(self._fd)
