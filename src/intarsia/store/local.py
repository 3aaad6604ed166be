"""Reading the files of a local folder at byte offsets."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from intarsia.errors import FormatError, StoreError

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Folder:
    """The files below one folder, each opened once and read by position from any thread."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()
        self._read_bytes = 0

    @property
    def read_bytes(self) -> int:
        """How many bytes were read so far."""
        return self._read_bytes

    def has(self, file: str) -> bool:
        """Whether there is such a file."""
        return (self.root / file).is_file()

    def size(self, file: str) -> int:
        """The length of a file in bytes."""
        try:
            return os.stat(self.root / file).st_size
        except OSError as error:
            raise unreadable(self.root / file, error) from error

    def read(self, file: str, start_bytes: int, length_bytes: int) -> bytes:
        """Exactly these bytes of a file."""
        buffer = bytearray(length_bytes)
        self.read_into(file, start_bytes, buffer)
        return bytes(buffer)

    def read_all(self, file: str) -> bytes:
        """A whole small file."""
        return self.read(file, 0, self.size(file))

    def read_into(self, file: str, start_bytes: int, buffer: Buffer) -> None:
        """Fill `buffer` from a file, starting at `start_bytes`."""
        fd = self._fd(file)
        view = memoryview(buffer).cast("B")
        at = 0
        while at < len(view):
            try:
                count = os.preadv(fd, [view[at:]], start_bytes + at)
            except OSError as error:
                raise unreadable(self.root / file, error) from error
            if count == 0:
                raise FormatError(
                    f"{self.root / file} ends at byte {os.fstat(fd).st_size:,};"
                    f" bytes [{start_bytes:,}:{start_bytes + len(view):,}) were expected",
                    hint="the file is truncated: copy it again from its source",
                )
            at += count
        self._read_bytes += len(view)

    def _fd(self, file: str) -> int:
        fd = self._open.get(file)
        if fd is None:
            with self._lock:
                fd = self._open.get(file)
                if fd is None:
                    try:
                        fd = os.open(self.root / file, os.O_RDONLY | os.O_CLOEXEC)
                    except OSError as error:
                        raise unreadable(self.root / file, error) from error
                    self._open[file] = fd
        return fd

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            for fd in self._open.values():
                os.close(fd)
            self._open.clear()

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def unreadable(path: Path, error: OSError) -> StoreError | FormatError:
    """What a failing system call on `path` means."""
    if isinstance(error, FileNotFoundError):
        return FormatError(
            f"{path} is absent", hint="restore the file, or use a complete checkpoint"
        )
    return StoreError(f"{path}: {error.strerror or error}")
