"""The garbage collector, kept from walking a growing pile of small values that all stay alive."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

SELDOM = 100_000
"""Values that are made before a command looks for those that nothing needs: some megabytes at most."""

_lock = Lock()
_found: list[tuple[int, int, int]] = []
"""What each call that is under way found: the last to end restores what the first did."""


@contextmanager
def paused() -> Iterator[None]:
    """Hold collections back while many values are made; halves the time of reading large headers."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def seldom() -> Iterator[None]:
    """Collect after many values instead of 700: what is imported and planned stays alive.

    In a process that has imported torch a collection walks 200,000 values that it will never free.
    """
    with _lock:
        _found.append(gc.get_threshold())
        gc.set_threshold(max(SELDOM, _found[0][0]), *_found[0][1:])
    try:
        yield
    finally:
        with _lock:
            usual = _found.pop()
            if not _found:
                gc.set_threshold(*usual)
