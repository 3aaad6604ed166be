"""Runs of files of two folders that are compared, and not kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from intarsia.kernel import comparing
from intarsia.kernel.comparing import NO_FILE, Numbers
from intarsia.store.reading.folder import Folder


class _Numbers(dict[str, int]):
    """Files by their numbers, of which each has the next when it is first asked for."""

    def __missing__(self, file: str) -> int:
        number = self[file] = len(self)
        return number


class Addresses(dict[bytes, int]):
    """Where bytes are in memory, and stay as long as this does."""

    def __missing__(self, data: bytes) -> int:
        address = self[data] = np.frombuffer(data, np.uint8).ctypes.data
        return address


@dataclass
class Places:
    """Where one side has its runs: rows of run k begin `steps[k]` bytes apart, the first at byte `at[k]` of the
    file with the number `files[k]`, or at that address in memory where that is `NO_FILE`."""

    names: _Numbers = field(default_factory=lambda: _Numbers())
    files: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def side(self, descriptors: Sequence[int]) -> comparing.Side:
        """The same with the descriptors of the files."""
        files = np.array([*descriptors, NO_FILE], np.int64)[self.files]
        return comparing.Side(files, np.array(self.at, np.int64), np.array(self.steps, np.int64))


@dataclass
class Runs:
    """Runs of two sides that should be equal: `rows[k]` rows of `row_bytes[k]` bytes."""

    left: Places = field(default_factory=Places)
    right: Places = field(default_factory=Places)
    rows: list[int] = field(default_factory=list)
    row_bytes: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)


def equal_runs(left: Folder, right: Folder, runs: Runs) -> int:
    """How many runs, from the first on, are known to be equal: all, or none from the first on that differs or
    ends early; raise where a disk fails."""
    ours, theirs = [*runs.left.names], [*runs.right.names]
    with left.opened_together(ours) as here, right.opened_together(theirs) as there:
        if here is None or there is None:
            return 0
        rows, row_bytes = np.array(runs.rows, np.int64), np.array(runs.row_bytes, np.int64)
        a, b = runs.left.side(here), runs.right.side(there)
        equal, failed = comparing.equal_runs(a, b, rows, row_bytes)
        for folder, files, fds, stopped in zip(
            (left, right), (ours, theirs), (here, there), failed, strict=True
        ):
            if stopped is not None:
                error, fd = stopped
                raise folder.unread(files[fds.index(fd)], 0, 0, error) from error
    read = (rows * row_bytes)[: equal + 1]
    left.count(_in_files(a, read))
    right.count(_in_files(b, read))
    return equal


def _in_files(side: comparing.Side, count_bytes: Numbers) -> int:
    """How many bytes of the first runs are in files."""
    return int(count_bytes[side.files[: len(count_bytes)] != NO_FILE].sum())
