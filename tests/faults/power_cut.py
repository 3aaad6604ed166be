"""What a disk holds after a power cut: what was synced, and of the rest whatever it had got round to.

A log of `failing_disk.c` says in which order a run changed the disk; a `Model` plays it up to some
point.  A file keeps what it held when its last sync began, and each later write, block by
block, only where chance has it.  A folder keeps the names that it had when its last sync began,
and then the first so many changes, as chance has it: folders do not wait for each other.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from intarsia.run.journal.keeping import JOB, read_lines, to_line
from intarsia.store.base import PARTIAL

BLOCK = 512


@dataclass(frozen=True)
class Change:
    """One call that changed a disk: its letter, its number (a position, a length, flags), its paths and bytes."""

    what: str
    number: int
    path: str
    other: str
    data: bytes


def read_log(path: Path) -> list[Change]:
    """Every change in the order of the log."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        end = data.index(b"\n", at)
        what, number, *sizes = data[at:end].split()
        at = end + 1
        parts = []
        for size in map(int, sizes):
            parts.append(data[at : at + size])
            at += size
        found.append(
            Change(what.decode(), int(number), parts[0].decode(), parts[1].decode(), parts[2])
        )
    return found


@dataclass
class File:
    """A file: what is on disk for sure, and the changes that may be."""

    sure: bytearray = field(default_factory=bytearray)
    maybe: list[tuple[int, bytes | None]] = field(default_factory=list)

    def settled(self, chance: Random) -> bytes:
        """What it holds after the cut."""
        held = bytearray(self.sure)
        for at, data in self.maybe:
            if data is None:
                if chance.random() < 0.5:
                    _resize(held, at)
                continue
            for start in range(0, len(data), BLOCK):
                if chance.random() < 0.5:
                    _put(held, at + start, data[start : start + BLOCK])
        return bytes(held)

    def keep(self, count: int) -> None:
        for at, data in self.maybe[:count]:
            if data is None:
                _resize(self.sure, at)
            else:
                _put(self.sure, at, data)
        del self.maybe[:count]


Names = dict[str, "File | Folder"]


@dataclass
class Folder:
    """A folder: its names now, those on disk for sure, and those after each change since."""

    now: Names = field(default_factory=dict)
    sure: Names = field(default_factory=dict)
    maybe: list[Names] = field(default_factory=list)

    def changed(self) -> None:
        self.maybe.append(dict(self.now))

    def settled(self, chance: Random) -> Names:
        """The names that it has after the cut."""
        return chance.choice([self.sure, *self.maybe])

    def keep(self, count: int) -> None:
        if count:
            self.sure = self.maybe[count - 1]
            del self.maybe[:count]


class Model:
    """A disk as a log tells it; what lies below `root` when it is made is there for sure.

    `partial` is the folder that a journal speaks of, by a number that no log tells.
    """

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.partial: Folder | None = None
        self.top = self._load(root) if root.exists() else Folder()
        self._begun: dict[str, tuple[File | Folder, int]] = {}

    def _load(self, path: Path) -> Folder:
        names: Names = {
            each.name: self._load(each) if each.is_dir() else File(bytearray(each.read_bytes()))
            for each in path.iterdir()
        }
        found = Folder(names, dict(names))
        if path.name.endswith(PARTIAL):
            self.partial = found
        return found

    def _find(self, path: str) -> File | Folder:
        at: File | Folder = self.top
        inside = os.path.relpath(path, self.root)
        for word in [] if inside == "." else inside.split("/"):
            assert isinstance(at, Folder)
            at = at.now[word]
        return at

    def _parent(self, path: str) -> tuple[Folder, str]:
        found = self._find(os.path.dirname(path))
        assert isinstance(found, Folder)
        return found, os.path.basename(path)

    def apply(self, change: Change) -> None:
        """Let one change come after the others."""
        match change.what:
            case "w" | "t":
                file = self._find(change.path)
                assert isinstance(file, File)
                file.maybe.append((change.number, change.data if change.what == "w" else None))
            case "S":
                found = self._find(change.path)
                self._begun[change.other] = found, len(found.maybe)
            case "s":
                found, count = self._begun.pop(change.other)
                found.keep(count)
            case _:
                folder, name = self._parent(change.path)
                self._rename(folder, name, change)
                folder.changed()

    def _rename(self, folder: Folder, name: str, change: Change) -> None:
        names = folder.now
        match change.what:
            case "c":
                names[name] = File()
            case "d":
                names[name] = made = Folder()
                if name.endswith(PARTIAL):
                    self.partial = made
            case "u":
                del names[name]
            case "n":
                other, new = self._parent(change.other)
                assert other is folder, "one change holds both names"
                names[new], old = names[name], names.get(new)
                del names[name]
                if change.number:
                    assert old is not None
                    names[name] = old
            case other_kind:
                raise AssertionError(other_kind)

    def lay_down(self, root: Path, chance: Random) -> None:
        """Make the files that are left of it; a journal then speaks of the number of the folder here."""
        places: dict[int, Path] = {}
        self._lay(self.top, root, chance, places)
        partial = places.get(id(self.partial))
        for job in root.glob(f".*/{JOB}*"):
            head, _, rest = job.read_bytes().partition(b"\n")
            if list(read_lines(job)):
                said = json.loads(head[9:])
                said["folder"] = partial.stat().st_ino if partial is not None else 0
                job.write_bytes(to_line(said) + rest)

    def _lay(self, folder: Folder, at: Path, chance: Random, places: dict[int, Path]) -> None:
        at.mkdir()
        places[id(folder)] = at
        for name, entry in folder.settled(chance).items():
            if isinstance(entry, File):
                (at / name).write_bytes(entry.settled(chance))
            else:
                self._lay(entry, at / name, chance, places)


def _resize(held: bytearray, size: int) -> None:
    del held[size:]
    held.extend(bytes(size - len(held)))


def _put(held: bytearray, at: int, data: bytes) -> None:
    if len(held) < at + len(data):
        _resize(held, at + len(data))
    held[at : at + len(data)] = data
