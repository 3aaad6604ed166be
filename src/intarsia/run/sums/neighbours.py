"""Sums of many short runs of bytes at once: to sum each alone costs more than its bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from intarsia.frozen import frozen
from intarsia.run.sums.checksum import shift
from intarsia.run.sums.hashing import Sum
from intarsia.run.sums.pages import PAGE_BYTES, sum_pages, sum_rows

Bytes = NDArray[np.uint8]


@frozen
class Run:
    """Consecutive bytes of a tensor of `whole_bytes`, the first being `start_bytes`."""

    start_bytes: int
    length_bytes: int
    whole_bytes: int

    def sum(self, pages: int, crc: int) -> Sum:
        """Its sum in the tensor, from that of its words in pages and the remainder of its CRC-32."""
        after = self.whole_bytes - self.start_bytes - self.length_bytes
        return Sum(pages, shift(crc, after) if after else crc, self.length_bytes)


class Neighbours:
    """Runs that lie in one buffer, each in words of its own, which are words of its tensor.

    >>> both = Neighbours([Run(0, 3, 3), Run(8, 5, 13)])
    >>> memory = np.empty(both.nbytes, np.uint8)
    >>> [len(view) for view in both.views(memory)], both.nbytes
    ([3, 5], 16)
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self._pages = _pages_of_each(runs)
        if self._pages is None:
            starts = np.array([run.start_bytes for run in runs], np.int64)
            lengths = np.array([run.length_bytes for run in runs], np.int64)
            self._first, self._skipped = starts >> 3, starts & 7
            self._widths = (self._skipped + lengths + 7) >> 3
            self._ends = np.cumsum(self._widths)

    @property
    def nbytes(self) -> int:
        if self._pages is not None:
            return len(self.runs) * self.runs[0].length_bytes
        return 8 * int(self._ends[-1]) if len(self._ends) else 0

    def views(self, memory: Bytes) -> list[Bytes]:
        """Where each run is to be put, in memory of so many bytes; what is left of its words is zero."""
        if self._pages is not None:
            length = self.runs[0].length_bytes
            return [memory[at : at + length] for at in range(0, len(memory), length)]
        words, begins = memory.view("<u8"), self._ends - self._widths
        words[begins] = 0
        words[self._ends - 1] = 0
        places = (8 * begins + self._skipped).tolist()
        return [
            memory[at : at + run.length_bytes] for at, run in zip(places, self.runs, strict=True)
        ]

    def rows(self, memory: Bytes, first: int, count: int) -> Bytes:
        """The places of `count` runs of one length and lead, the first being run `first`, as rows of one array."""
        if self._pages is not None:
            width = self.runs[0].length_bytes
            return memory[first * width : (first + count) * width].reshape(count, width)
        width, skipped = 8 * int(self._widths[first]), int(self._skipped[first])
        start = 8 * int(self._ends[first]) - width
        block = memory[start : start + count * width].reshape(count, width)
        return block[:, skipped : skipped + self.runs[first].length_bytes]

    def sums(self, memory: Bytes, remainders: Sequence[int]) -> list[Sum]:
        """The sum of each run, all of them being in their places, from the remainder of its CRC-32."""
        words = memory.view("<u8")
        if self._pages is not None:
            pages = sum_pages(words, self._pages).tolist()
        else:
            pages = sum_rows(words, self._widths, self._first).tolist()
        return [run.sum(*each) for run, *each in zip(self.runs, pages, remainders, strict=True)]


def _pages_of_each(runs: Sequence[Run]) -> range | None:
    """The pages of its tensor that each run is, where all are the same whole ones."""
    first = runs[0] if runs else None
    if first is None or first.start_bytes % PAGE_BYTES or first.length_bytes % PAGE_BYTES:
        return None
    if not first.length_bytes or runs[-1] != first or runs.count(first) < len(runs):
        return None
    return range(
        first.start_bytes // PAGE_BYTES, (first.start_bytes + first.length_bytes) // PAGE_BYTES
    )
