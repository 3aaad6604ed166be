"""A lock that one process at a time holds on a destination."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from intarsia.errors import UsageError
from intarsia.store.system_errors import errors_naming, unlockable


class Lock:
    """A locked file beside a destination, where no rename moves it away."""

    def __init__(self, path: Path, destination: Path) -> None:
        self.path = path
        self.destination = destination
        self.fd: int | None = None

    @property
    def held(self) -> bool:
        """Whether this process holds it."""
        return self.fd is not None

    def take(self) -> None:
        """Take it, or raise where another process has it."""
        while self.fd is None:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                self._lock(fd)
                if self._is_mine(fd):
                    self.fd = fd
            except KeyboardInterrupt:
                self._forget(fd)
                raise
            finally:
                if self.fd is None:
                    os.close(fd)

    def _forget(self, fd: int) -> None:
        """Remove the file that was made, unless another process holds it: it would keep other users away."""
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_mine(fd):
                self.path.unlink()

    def _is_mine(self, fd: int) -> bool:
        """Whether the file still has its name: its last owner may have removed it in between."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(fd))
        except FileNotFoundError:
            return False

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"another process is writing {self.destination}",
                hint="wait for it, or choose another destination",
            ) from error
        except OSError as error:
            raise unlockable(self.path, error) from error

    def give_back(self) -> None:
        """Remove the file, and let others take it."""
        if self.fd is not None:
            fd, self.fd = self.fd, None
            with errors_naming(self.path):
                try:
                    self.path.unlink(missing_ok=True)
                finally:
                    os.close(fd)
