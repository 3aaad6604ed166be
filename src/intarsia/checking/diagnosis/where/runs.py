"""Marks that come in one after the other, as runs and as whole sectors of a file."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.diagnosis.hypothesis import Mask

FEW = 8
"""Runs up to this number are listed one by one."""

SECTOR_BYTES = 512
PAGE_BYTES = 4096

_FULL = 0.98
"""The share of a sector's elements that differ where all of it was overwritten."""

Counts = NDArray[np.int64]

_OUTSIDE, _EQUAL, _FILLED, _PARTLY = range(4)


@dataclass
class MarkRuns:
    """Runs of marks; the first few are kept, all are counted.

    >>> runs = MarkRuns()
    >>> runs.add(10, np.array([True, True, False])); runs.add(13, np.array([True]))
    >>> runs.few, runs.count, runs.first, runs.end
    (((10, 12), (13, 14)), 2, 10, 14)
    """

    count: int = 0
    marks: int = 0
    first: int = -1
    end: int = -1
    _kept: list[tuple[int, int]] = field(default_factory=list)

    def add(self, start: int, marks: Mask) -> None:
        """Add marks, the first being number `start`; they come in order."""
        if not marks.any():
            return
        edges = np.flatnonzero(np.diff(marks.astype(np.int8), prepend=0, append=0)) + start
        self.marks += int(np.count_nonzero(marks))
        joined = int(edges[0]) == self.end
        self.count += len(edges) // 2 - joined
        self.first = int(edges[0]) if self.first < 0 else self.first
        self.end = int(edges[-1])
        if self.count > FEW:
            self._kept = []
            return
        lows, highs = edges[::2].tolist(), edges[1::2].tolist()
        if joined:
            lows[0] = self._kept.pop()[0]
        self._kept += zip(lows, highs, strict=True)

    @property
    def few(self) -> tuple[tuple[int, int], ...]:
        """Every run, where they are few, and otherwise none."""
        return tuple(self._kept)


@dataclass
class Sectors:
    """Whether the differences of a stretch of a file fill whole sectors, or whole pages, of it."""

    partly: int = 0
    turns: int = 0
    off_page: int = 0
    _at: int = -1
    _unequal: int = 0
    _held: int = 0
    _before: int = _OUTSIDE

    def add(self, start_bytes: int, itemsize: int, unequal: Mask, held: Mask | None) -> None:
        """Add elements from a byte of the file on; `held` are those of the tensor, None for all."""
        first = start_bytes // SECTOR_BYTES
        last = (start_bytes + (len(unequal) - 1) * itemsize) // SECTOR_BYTES
        # The first element that begins in each sector; one that straddles belongs to the former.
        at = -(-(np.arange(first, last + 1) * SECTOR_BYTES - start_bytes) // itemsize)
        at[0] = 0
        wrong = np.add.reduceat(unequal, at, dtype=np.int64)
        mine = np.diff(at, append=len(unequal))
        if held is not None:
            mine = np.add.reduceat(held, at, dtype=np.int64)
        if first == self._at:
            wrong[0] += self._unequal
            mine[0] += self._held
        elif self._at >= 0:
            wrong, mine = np.append(self._unequal, wrong), np.append(self._held, mine)
            first = self._at
        self._close(first, wrong[:-1], mine[:-1])
        self._at, self._unequal, self._held = last, int(wrong[-1]), int(mine[-1])

    def close(self) -> int:
        """The bytes of the units that the differences fill, or 0 where they fill none.

        What differs from end to end does not tell: its ends are the tensor's.
        """
        self._close(self._at, np.array([self._unequal]), np.array([self._held]))
        self._unequal = self._held = 0
        if self.partly or not self.turns:
            return 0
        if not self.off_page:
            return PAGE_BYTES
        return SECTOR_BYTES if self.turns > 1 else 0

    def _close(self, first: int, wrong: Counts, held: Counts) -> None:
        """Take in the sectors from number `first` on that are complete."""
        if not len(wrong):
            return
        state = np.full(len(wrong), _PARTLY)
        state[wrong == 0] = _EQUAL
        state[(wrong > 0) & (wrong >= _FULL * held)] = _FILLED
        state[held == 0] = _OUTSIDE
        self.partly += int(np.count_nonzero(state == _PARTLY))
        before = np.append(self._before, state[:-1])
        turned = ((before == _EQUAL) & (state == _FILLED)) | (
            (before == _FILLED) & (state == _EQUAL)
        )
        at = np.flatnonzero(turned) + first
        self.turns += len(at)
        self.off_page += int(np.count_nonzero(at % (PAGE_BYTES // SECTOR_BYTES)))
        self._before = int(state[-1])
