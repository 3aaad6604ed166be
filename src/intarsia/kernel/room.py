"""Memory that each thread keeps for what the library reads, small enough for a core's cache."""

from __future__ import annotations

import threading

import numpy as np

ROOM_BYTES = 256 << 10
"""What is read at a time, and stays in the cache while it is summed, compared or written."""


class CacheRoom(threading.local):
    """So many bytes for each thread."""

    def __init__(self, count_bytes: int = ROOM_BYTES) -> None:
        self.bytes = np.empty(count_bytes, np.uint8)


THREAD_ROOM = CacheRoom()
