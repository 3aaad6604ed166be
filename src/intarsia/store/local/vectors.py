"""Buffers that go to the kernel together, in one call."""

from __future__ import annotations

import os
from typing import TypeVar

VECTORS = min(1024, os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 16)
"""How many buffers one call takes."""


View = bytes | memoryview
V = TypeVar("V", memoryview, View)


def drop_first(views: list[V], count_bytes: int) -> None:
    """Take away the bytes that a call has done with, which are the first ones.

    >>> views = [memoryview(b"ab"), memoryview(b"cde")]
    >>> drop_first(views, 3)
    >>> [bytes(view) for view in views]
    [b'de']
    """
    while views and count_bytes >= len(views[0]):
        count_bytes -= len(views.pop(0))
    if count_bytes:
        views[0] = views[0][count_bytes:]
