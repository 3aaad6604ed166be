"""A store that keeps its files in memory, under their URLs: as short as a store can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import PurePath

from intarsia.errors import UsageError
from intarsia.store.base import DirectoryEntry, Range, Reader, Store, Transaction
from intarsia.store.stamp import Stamp
from intarsia.store.writing.old_contents import OldContents


@dataclass
class File:
    """Bytes, and a number that is another one after each change."""

    data: bytearray
    number: int

    @property
    def stamp(self) -> Stamp:
        return Stamp(len(self.data), self.number, self.number, self.number)


@dataclass
class MemoryStore(Store):
    """Files in memory; `written` are the numbers of folders that transactions made."""

    files: dict[str, File] = field(default_factory=dict)
    written: dict[PurePath, int] = field(default_factory=dict)
    locked: set[PurePath] = field(default_factory=set)
    numbers: count[int] = field(default_factory=count)

    def put(self, path: PurePath, data: bytes, *, lasting: bool = True) -> None:
        self.files[str(path)] = File(bytearray(data), next(self.numbers))

    def remove(self, path: PurePath) -> None:
        self.files.pop(str(path), None)
        for name in self.below(path):
            del self.files[str(path / name)]
        self.written.pop(path, None)

    def below(self, folder: PurePath) -> dict[str, File]:
        """The files below a folder, by their names in it."""
        start = f"{folder}/"
        return {n.removeprefix(start): f for n, f in self.files.items() if n.startswith(start)}

    def look(self, path: PurePath) -> DirectoryEntry | None:
        if file := self.files.get(str(path)):
            return DirectoryEntry("file", file.stamp, (0, file.number))
        if held := self.below(path):
            first = min(file.number for file in held.values())
            return DirectoryEntry("folder", Stamp(0, first, first, first), (0, first))
        return None

    def names(self, folder: PurePath) -> list[str]:
        return sorted({name.split("/")[0] for name in self.below(folder)})

    def reader(self, folder: PurePath) -> MemoryReader:
        return MemoryReader(self, folder)

    def transaction(self, destination: PurePath) -> MemoryTransaction:
        return MemoryTransaction(self, destination)


@dataclass
class MemoryReader(Reader):
    """The files below a folder."""

    store: MemoryStore
    folder: PurePath

    def stamp(self, file: str) -> Stamp:
        return self._file(file).stamp

    def read(self, file: str, ranges: Sequence[Range]) -> Stamp:
        found = self._file(file)
        for start_bytes, buffer in ranges:
            if start_bytes + len(buffer) > len(found.data):
                raise EOFError
            buffer[:] = memoryview(found.data)[start_bytes : start_bytes + len(buffer)]
        return found.stamp

    def _file(self, file: str) -> File:
        try:
            return self.store.files[str(self.folder / file)]
        except KeyError:
            raise FileNotFoundError(file) from None


class MemoryTransaction(Transaction):
    """Files of a hidden folder, which become the destination's in one step."""

    store: MemoryStore
    held = False

    def claim(self) -> None:
        if self.destination in self.store.locked:
            raise UsageError(f"another process is writing {self.destination}")
        self.store.locked.add(self.destination)
        self.held = True

    def release(self) -> None:
        self.store.locked.discard(self.destination)
        self.held = False

    def clear(self) -> None:
        self.store.remove(self.folder)
        self.store.written[self.folder] = next(self.store.numbers)

    def number_of(self, path: PurePath) -> int | None:
        return self.store.written.get(path)

    def create(self, file: str, size_bytes: int, *, keep: bool = False) -> None:
        held = self.store.files.get(str(self.folder / file))
        old = bytes(held.data[:size_bytes]) if held and keep else b""
        self.store.put(self.folder / file, old.ljust(size_bytes, b"\0"))

    def write(self, file: str, start_bytes: int, buffers: Sequence[bytes]) -> None:
        held = self.store.files[str(self.folder / file)]
        for data in buffers:
            view = memoryview(data).cast("B")
            held.data[start_bytes : start_bytes + len(view)] = view
            start_bytes += len(view)
        held.number = next(self.store.numbers)

    def commit(self, old: OldContents | None) -> None:
        files, written = dict(self.store.files), dict(self.store.written)
        for name in self.store.below(self.destination):
            del files[str(self.destination / name)]
        for name in self.store.below(self.folder):
            files[str(self.destination / name)] = files.pop(str(self.folder / name))
        written[self.destination] = written.pop(self.folder)
        self.store.files, self.store.written = files, written
