"""The names of what lies beside a destination while it is written."""

from __future__ import annotations

import hashlib
import os
from pathlib import PurePath
from typing import TypeVar

P = TypeVar("P", bound=PurePath)

PARTIAL = ".intarsia-partial"
"""How the name of a folder ends that is not whole yet."""
JOURNAL = ".intarsia-journal"
LOCK = ".intarsia-lock"
_NAME_BYTES = 255 - len(f".{PARTIAL}-replaced")
"""The longest name to which all of these can be added."""


def beside(destination: P, what: str) -> P:
    """The hidden name of something that belongs to a destination."""
    return destination.with_name(f".{short_name(destination.name)}{what}")


def short_name(name: str) -> str:
    """A name, cut and numbered by its hash where nothing could be added to it."""
    data = os.fsencode(name)
    if len(data) <= _NAME_BYTES:
        return name
    number = hashlib.blake2b(data, digest_size=8).hexdigest()
    cut = data[: _NAME_BYTES - len(number) - 1].decode("utf-8", "ignore")
    return f"{cut}~{number}"
