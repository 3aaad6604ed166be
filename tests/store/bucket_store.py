"""A store as object stores are: nothing is renamed, and what is written shows when a marker is put, last.

Its objects are files of one folder, so that all processes share them.  An upload is a folder with a number;
a marker, itself a small object, says under which name an upload shows.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import ClassVar
from urllib.parse import quote, unquote

from intarsia.errors import UsageError
from intarsia.store.base import DirectoryEntry, Range, Reader, Store, Transaction
from intarsia.store.stamp import Stamp
from intarsia.store.writing.old_contents import OldContents


def key(name: object) -> str:
    return quote(str(name), safe="")


class BucketStore(Store):
    """Objects in a folder, by default the one that the environment names."""

    shared: ClassVar[bool] = True

    def __init__(self, root: Path | None = None) -> None:
        root = root or Path(os.environ["BUCKET"])
        self.objects, self.markers = root / "objects", root / "markers"
        self.uploads, self.locks, self.fresh = root / "uploads", root / "locks", root / "fresh"
        for folder in (self.objects, self.markers, self.uploads, self.locks, self.fresh):
            folder.mkdir(parents=True, exist_ok=True)

    def files(self) -> dict[str, Path]:
        """Every file that shows, by its name; an upload hides what was put under its name before."""
        shown = {unquote(m.name): self.uploads / m.read_text() for m in self.markers.iterdir()}
        found = {unquote(path.name): path for path in self.objects.iterdir()}
        found = {n: p for n, p in found.items() if not any(is_below(n, name) for name in shown)}
        for name, upload in shown.items():
            found |= {f"{name}/{unquote(path.name)}": path for path in upload.iterdir()}
        return found

    def upload_of(self, path: PurePath) -> int | None:
        """The number of the upload that shows under a name."""
        try:
            return int((self.markers / key(path)).read_text())
        except FileNotFoundError:
            return None

    def mark(self, path: PurePath, upload: int) -> None:
        """Let an upload show under a name, in one step."""
        self._put(self.markers / key(path), str(upload).encode())

    def look(self, path: PurePath) -> DirectoryEntry | None:
        files = self.files()
        if held := files.get(str(path)):
            found = held.stat()
            return DirectoryEntry("file", Stamp.from_stat(found), (0, found.st_ino))
        if any(is_below(name, str(path)) for name in files):
            number = self.upload_of(path) or 0
            return DirectoryEntry("folder", Stamp(0, 0, 0, number), (0, number))
        return None

    def names(self, folder: PurePath) -> list[str]:
        start = f"{folder}/"
        return sorted(
            {n.removeprefix(start).split("/")[0] for n in self.files() if n.startswith(start)}
        )

    def reader(self, folder: PurePath) -> BucketReader:
        return BucketReader(self, folder)

    def transaction(self, destination: PurePath) -> BucketTransaction:
        return BucketTransaction(self, destination)

    def put(self, path: PurePath, data: bytes, *, lasting: bool = True) -> None:
        for parent in path.parents[:-1]:
            if (upload := self.upload_of(parent)) is not None:
                self._put(self.uploads / str(upload) / key(path.relative_to(parent)), data)
                return
        self._put(self.objects / key(path), data)

    def _put(self, path: Path, data: bytes) -> None:
        fresh = self.fresh / f"{os.getpid()}-{path.name}"
        fresh.write_bytes(data)
        fresh.replace(path)

    def remove(self, path: PurePath) -> None:
        within = any(is_below(str(path), unquote(marker.name)) for marker in self.markers.iterdir())
        for name, held in self.files().items():
            single = within or held.parent == self.objects
            if single and (name == str(path) or is_below(name, str(path))):
                held.unlink()
        for marker in list(self.markers.iterdir()):
            if unquote(marker.name) == str(path) or is_below(unquote(marker.name), str(path)):
                upload = marker.read_text()
                marker.unlink()
                self.forget(upload)

    def forget(self, upload: str) -> None:
        """Remove an upload that shows nowhere."""
        if upload not in [marker.read_text() for marker in self.markers.iterdir()]:
            shutil.rmtree(self.uploads / upload, ignore_errors=True)


def is_below(name: str, folder: str) -> bool:
    return name.startswith(f"{folder}/")


class BucketReader(Reader):
    """The objects below a name."""

    def __init__(self, store: BucketStore, folder: PurePath) -> None:
        self.store, self.folder = store, folder

    def stamp(self, file: str) -> Stamp:
        return Stamp.from_stat(self._file(file).stat())

    def read(self, file: str, ranges: Sequence[Range]) -> Stamp:
        with self._file(file).open("rb") as held:
            for start_bytes, buffer in ranges:
                held.seek(start_bytes)
                if held.readinto(buffer) != len(buffer):
                    raise EOFError
            return Stamp.from_stat(os.fstat(held.fileno()))

    def _file(self, file: str) -> Path:
        try:
            return self.store.files()[str(self.folder / file)]
        except KeyError:
            raise FileNotFoundError(file) from None


class BucketTransaction(Transaction):
    """An upload, which shows under the name of the partial folder first and then at the destination."""

    store: BucketStore
    _lock: int | None = None

    @property
    def held(self) -> bool:
        return self._lock is not None

    def claim(self) -> None:
        lock = os.open(self.store.locks / key(self.destination), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise UsageError(f"another process is writing {self.destination}") from None
        self._lock = lock
        if self.number_of(self.folder) == self.number_of(self.destination):  # killed in a commit
            self._unmark()

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def clear(self) -> None:
        self.store.remove(self.folder)
        upload = int.from_bytes(os.urandom(6), "big")
        (self.store.uploads / str(upload)).mkdir()
        self.store.mark(self.folder, upload)

    def number_of(self, path: PurePath) -> int | None:
        return self.store.upload_of(path)

    def create(self, file: str, size_bytes: int, *, keep: bool = False) -> None:
        with self._file(file).open("ab") as held:
            held.truncate(held.tell() if keep else 0)
            held.truncate(size_bytes)

    def write(self, file: str, start_bytes: int, buffers: Sequence[bytes]) -> None:
        with self._file(file).open("r+b") as held:
            held.seek(start_bytes)
            held.writelines(buffers)

    def commit(self, old: OldContents | None) -> None:
        upload, before = self.number_of(self.folder), self.number_of(self.destination)
        assert upload is not None
        self.store.mark(self.destination, upload)
        self._unmark()
        if before is not None:
            self.store.forget(str(before))

    def _unmark(self) -> None:
        (self.store.markers / key(self.folder)).unlink(missing_ok=True)

    def _file(self, file: str) -> Path:
        return self.store.uploads / str(self.number_of(self.folder)) / key(file)
