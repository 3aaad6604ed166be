"""Saying how far a job is."""

from __future__ import annotations

import threading
from collections.abc import Callable

from intarsia.errors import UsageError

Progress = Callable[[int, int], None]
"""What a caller gives: it receives the bytes that are done, and those of all."""

Advance = Callable[[int], None]
"""What threads call with the bytes that they have done."""


def counting(progress: Progress | None, total_bytes: int) -> Advance:
    """Adds up the bytes that threads have done, and passes the sum on.

    >>> advance = counting(lambda done, total: print(f"{done} of {total}"), 12)
    >>> advance(4), advance(8)
    4 of 12
    12 of 12
    (None, None)
    """
    done, lock = 0, threading.Lock()
    if progress is not None and not callable(progress):
        raise UsageError(
            f"`progress` is {progress!r} of type {type(progress).__name__}",
            hint="give a function of the bytes that are done, and of those of all",
        )

    def advance(count_bytes: int) -> None:
        nonlocal done
        with lock:
            done += count_bytes
            if progress is not None:
                progress(done, total_bytes)

    return advance


def after(progress: Progress | None, done_bytes: int) -> Progress | None:
    """The progress of what comes after so many bytes: its own are added to them."""
    if progress is None:
        return None
    return lambda done, total: progress(done_bytes + done, done_bytes + total)
