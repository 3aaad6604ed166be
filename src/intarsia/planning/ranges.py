"""Ranges of whole numbers; those that overlap another are found by bisection."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate


class Ranges:
    """Ranges `[start, stop)` in the order of their starts; one may reach beyond those after it.

    >>> Ranges([0, 1, 6], [10, 3, 8]).near(4, 6)
    slice(0, 2, None)
    """

    def __init__(self, starts: Sequence[int], stops: Iterable[int]) -> None:
        self._starts = starts
        self._reached = list(accumulate(stops, max))

    def near(self, start: int, stop: int) -> slice:
        """All that share some of `[start, stop)`, and perhaps some that lie between them."""
        return slice(bisect_right(self._reached, start), bisect_left(self._starts, stop))
