"""Headers that several readers of one checkpoint ask for, read and taken apart once.

A checkpoint is looked at more than once: to tell its format, to find the newest whole one of a run, to
name its tensors, and again with a configuration that a model lends.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from intarsia.store.stamp import Stamp

MOST_BYTES = 64 << 20
"""How much is kept, and how much is kept apart; what is more is read and taken apart again."""

StampedRange = tuple[str, Stamp, int, int]
"""The path of a file, its stamp, the first byte and how many: a file that changed is another one."""


Made = TypeVar("Made")


@dataclass
class _Kept:
    stretches: dict[StampedRange, bytes] = field(default_factory=dict)
    made: dict[tuple[Hashable, bytes], Any] = field(default_factory=dict)
    nbytes: int = 0
    made_bytes: int = 0
    headers: int = 0
    """How many readers of headers are at work, one inside the other."""


_KEPT: ContextVar[_Kept | None] = ContextVar("kept", default=None)


@contextmanager
def reading_once() -> Iterator[None]:
    """A job: a header that was read inside is not read again."""
    if _KEPT.get() is not None:
        yield
        return
    token = _KEPT.set(_Kept())
    try:
        yield
    finally:
        _KEPT.reset(token)


@contextmanager
def reading_headers() -> Iterator[None]:
    """What is read inside is headers, which the job keeps."""
    with reading_once():
        kept = _KEPT.get()
        assert kept is not None
        kept.headers += 1
        try:
            yield
        finally:
            kept.headers -= 1


def is_reading_once() -> bool:
    """Whether a job keeps its headers."""
    return _KEPT.get() is not None


def read_once(at: StampedRange, read: Callable[[], bytes]) -> bytes:
    """Bytes of a file, which `read` brings where they are not those of a header that was read before."""
    kept = _KEPT.get()
    found = kept.stretches.get(at) if kept else None
    if found is None:
        found = read()
        if kept and kept.headers and kept.nbytes + len(found) <= MOST_BYTES:
            kept.stretches[at] = found
            kept.nbytes += len(found)
    return found


def made_once(what: Hashable, data: bytes, make: Callable[[], Made]) -> Made:
    """What `make` takes out of the bytes of a header, once in a job; nobody may change it."""
    kept = _KEPT.get()
    found: Made | None = kept.made.get((what, data)) if kept else None
    if found is None:
        found = make()
        if kept and kept.headers and kept.made_bytes + len(data) <= MOST_BYTES:
            kept.made[what, data] = found
            kept.made_bytes += len(data)
    return found
