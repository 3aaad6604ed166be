"""Memory that threads keep: pages of fresh memory cost about as much as the reading that fills them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def in_parts(memory: Bytes, lengths: Sequence[int]) -> list[Bytes]:
    """Memory cut into parts of these lengths, one after another.

    >>> [part.tolist() for part in in_parts(np.arange(5, dtype=np.uint8), [2, 0, 3])]
    [[0, 1], [], [2, 3, 4]]
    """
    ends = accumulate(lengths)
    return [memory[end - length : end] for end, length in zip(ends, lengths, strict=True)]


class Room(threading.local):
    """A buffer for each thread, which lasts until the thread asks for another.

    >>> room = Room()
    >>> room.take(3).base is room.take(2).base
    True
    """

    _held: Bytes = np.empty(0, np.uint8)

    def take(self, count_bytes: int) -> Bytes:
        """So many bytes, with whatever they held last."""
        if len(self._held) < count_bytes:
            self._held = np.empty(count_bytes, np.uint8)
        return self._held[:count_bytes]
