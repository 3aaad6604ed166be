"""A file that grows by lines, in a store that keeps only whole files."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from intarsia.store.base import Store


class Log(Protocol):
    """Lines that one process adds one after another; each outlives the process once it is added."""

    def append(self, line: bytes) -> None:
        """Add a line."""

    def sync(self) -> None:
        """Make what was added outlive the machine, too."""

    def close(self) -> None:
        """Add no more."""


class NumberedLog:
    """A log whose every line is a file: its name, and a number by which they have their order."""

    def __init__(self, store: Store, path: PurePath) -> None:
        self._store, self._path = store, path
        try:
            there = store.names(path.parent)
        except (FileNotFoundError, NotADirectoryError):
            there = []
        mine = [name.partition(".")[2] for name in there if log_of(name) == path.name]
        self._next = 1 + max(map(int, mine), default=0)

    def append(self, line: bytes) -> None:
        self._store.put(self._path.with_name(f"{self._path.name}.{self._next:09d}"), line)
        self._next += 1

    def sync(self) -> None:
        """Nothing: a file that was put lasts."""

    def close(self) -> None:
        """Nothing is open."""


def log_of(name: str) -> str:
    """The name of the log that a file is of, or a line of."""
    return name.partition(".")[0]
