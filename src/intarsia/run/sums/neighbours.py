"""Sums of many short runs of bytes at once: to sum each alone costs more than its bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from intarsia.frozen import frozen
from intarsia.run.sums.checksum import shift
from intarsia.run.sums.hashing import Sum
from intarsia.run.sums.pages import sum_rows

Bytes = NDArray[np.uint8]


@frozen
class Run:
    """Consecutive bytes of a tensor of `whole_bytes`, the first being `start_bytes`."""

    start_bytes: int
    length_bytes: int
    whole_bytes: int


class Neighbours:
    """Runs that lie in one buffer, each in words of its own, which are words of its tensor.

    >>> both = Neighbours([Run(0, 3, 3), Run(8, 5, 13)])
    >>> memory = np.empty(both.nbytes, np.uint8)
    >>> [len(view) for view in both.views(memory)], both.nbytes
    ([3, 5], 16)
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        starts = np.array([run.start_bytes for run in runs], np.int64)
        lengths = np.array([run.length_bytes for run in runs], np.int64)
        self._first, self._skipped = starts >> 3, starts & 7
        self._widths = (self._skipped + lengths + 7) >> 3
        self._ends = np.cumsum(self._widths)

    @property
    def nbytes(self) -> int:
        return 8 * int(self._widths.sum())

    def views(self, memory: Bytes) -> list[Bytes]:
        """Where each run is to be put, in memory of so many bytes; what is left of its words is zero."""
        words, begins = memory.view("<u8"), self._ends - self._widths
        words[begins] = 0
        words[self._ends - 1] = 0
        places = (8 * begins + self._skipped).tolist()
        return [
            memory[at : at + run.length_bytes] for at, run in zip(places, self.runs, strict=True)
        ]

    def rows(self, memory: Bytes, first: int, count: int) -> Bytes:
        """The places of `count` runs of one length and lead, the first being run `first`, as rows of one array."""
        width, skipped = 8 * int(self._widths[first]), int(self._skipped[first])
        start = 8 * int(self._ends[first]) - width
        block = memory[start : start + count * width].reshape(count, width)
        return block[:, skipped : skipped + self.runs[first].length_bytes]

    def sums(self, memory: Bytes, remainders: Sequence[int]) -> list[Sum]:
        """The sum of each run, all of them being in their places, from the remainder of its CRC-32."""
        pages = sum_rows(memory.view("<u8"), self._widths, self._first).tolist()
        found = []
        for total, crc, run in zip(pages, remainders, self.runs, strict=True):
            after = run.whole_bytes - run.start_bytes - run.length_bytes
            found.append(Sum(total, shift(crc, after) if after else crc, run.length_bytes))
        return found
