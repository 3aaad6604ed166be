"""Runs of files of two folders that are compared, and not kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from intarsia.kernel import comparing
from intarsia.kernel.comparing import NO_FILE, Numbers
from intarsia.store.reading.folder import Folder


class FileNumbers(dict[str, int]):
    """Files by their numbers; each file gets the next number when it is first asked for."""

    def __missing__(self, file: str) -> int:
        number = self[file] = len(self)
        return number


class Addresses(dict[bytes, int]):
    """Where bytes are in memory, and stay as long as this does."""

    def __missing__(self, data: bytes) -> int:
        address = self[data] = np.frombuffer(data, np.uint8).ctypes.data
        return address


class RunSide(NamedTuple):
    """One side of runs, in columns: rows of run k begin `steps[k]` bytes apart, the first at byte `at[k]` of the file
    with the number `files[k]` among `names`, or at that address in memory where that is `NO_FILE`."""

    names: Sequence[str]
    files: Numbers
    at: Numbers
    steps: Numbers

    def part(self, start: int, stop: int) -> RunSide:
        """The same of some of the runs, with their files alone."""
        files = self.files[start:stop]
        used = np.flatnonzero(np.bincount(files - NO_FILE)) + NO_FILE
        used = used[used != NO_FILE]
        # `NO_FILE` is the last, and stays what it is.
        numbers = np.full(len(self.names) + 1, NO_FILE)
        numbers[used] = np.arange(len(used))
        names = [self.names[number] for number in used.tolist()]
        return RunSide(names, numbers[files], self.at[start:stop], self.steps[start:stop])


@dataclass
class RunSideColumns:
    """One side of runs while they are put together: as the columns of a `RunSide`."""

    names: FileNumbers = field(default_factory=lambda: FileNumbers())
    files: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def side(self) -> RunSide:
        columns = (np.array(x, np.int64) for x in (self.files, self.at, self.steps))
        return RunSide([*self.names], *columns)


@dataclass
class RunPairs:
    """Runs of two sides that should be equal: `rows[k]` rows of `row_bytes[k]` bytes."""

    left: RunSideColumns = field(default_factory=RunSideColumns)
    right: RunSideColumns = field(default_factory=RunSideColumns)
    rows: list[int] = field(default_factory=list)
    row_bytes: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)


def equal_runs(
    left: Folder, right: Folder, a: RunSide, b: RunSide, rows: Numbers, row_bytes: Numbers
) -> int:
    """How many runs of `rows[k]` rows of `row_bytes[k]` bytes, from the first on, are known to be equal: all, or none
    from the first on that differs or ends early; raise where a disk fails."""
    with left.opened_together(a.names) as here, right.opened_together(b.names) as there:
        if here is None or there is None:
            return 0
        ours, theirs = _opened(a, here), _opened(b, there)
        equal, failed = comparing.equal_runs(ours, theirs, rows, row_bytes)
        for folder, files, fds, stopped in zip(
            (left, right), (a.names, b.names), (here, there), failed, strict=True
        ):
            if stopped is not None:
                error, fd = stopped
                raise folder.unread(files[fds.index(fd)], 0, 0, error) from error
    read = (rows * row_bytes)[: equal + 1]
    left.count(_in_files(ours, read))
    right.count(_in_files(theirs, read))
    return equal


def _opened(side: RunSide, descriptors: Sequence[int]) -> comparing.OpenSide:
    """A side with the descriptors of its files."""
    return comparing.OpenSide(
        np.array([*descriptors, NO_FILE], np.int64)[side.files], side.at, side.steps
    )


def _in_files(side: comparing.OpenSide, count_bytes: Numbers) -> int:
    """How many bytes of the first runs are in files."""
    return int(count_bytes[side.files[: len(count_bytes)] != NO_FILE].sum())
