"""Whether zeros may lie together by chance, as many zeros lie around them.

Where weights were pruned or tokens never used, zeros lie here and there, and some of them where a
rank's would.  Each is drawn like its neighbours: what so many neighbours make too unlikely is no chance.
"""

from __future__ import annotations

from math import log

_LEAST = log(1e-9)
"""What is less likely than this happens to no checkpoint by chance."""


def may_be_zero(count: int, zeros: int, others: int, places: int = 1) -> bool:
    """Whether `count` neighbours are zero by chance at one of `places`, as `zeros` of the `others` are.

    >>> may_be_zero(4, 8, 44, 48), may_be_zero(12, 1, 36, 48), may_be_zero(4, 0, 44, 48)
    (True, False, False)
    """
    if zeros <= 0:
        return False
    return count * log(zeros / others) + log(places) > _LEAST
