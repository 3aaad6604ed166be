"""The compiled library, found beside this file and loaded; None where there is none for this machine.

`INTARSIA_KERNEL=off` does without it, `INTARSIA_KERNEL=required` fails where it is missing.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FOLDER = os.path.dirname(os.path.abspath(__file__))

FILE = os.path.join(_FOLDER, f"kernel-{os.uname().machine}.so")
"""The library for machines of this kind: a source tree may be shared by several."""

_CALLS = "equal_runs", "move", "read_runs", "sum_file", "survey", "write", "write_pieces"
"""Those that say how they went: 0, a number of the system's below zero, or that a file ended."""

_ENDED = 1


def sources_hash(folder: str) -> str:
    """The hash of the sources in a folder; empty where there are none."""
    names = sorted(name for name in os.listdir(folder) if name.endswith((".c", ".h")))
    found = hashlib.blake2b(digest_size=16)
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            found.update(f"{name}\0".encode() + file.read())
    return found.hexdigest() if names else ""


def check(went: int) -> None:
    """Raise what a call of the library that reads or writes says went wrong, as Python's own calls do."""
    if went:
        raise error_of(went)


def error_of(went: int) -> OSError | EOFError:
    """What a call of the library says went wrong."""
    return EOFError() if went == _ENDED else OSError(-went, os.strerror(-went))


def address(array: NDArray[Any]) -> ctypes.c_void_p:
    """Where the elements of an array begin."""
    return ctypes.c_void_p(array.ctypes.data)


def _load() -> ctypes.CDLL | None:
    asked = os.environ.get("INTARSIA_KERNEL", "")
    if asked == "off":
        return None
    try:
        library = ctypes.CDLL(FILE)
        library.intarsia_made_from.restype = ctypes.c_char_p
        made_from = library.intarsia_made_from().decode()
        # Sources that changed since would be called with arguments that they do not have.
        if made_from == (sources_hash(_FOLDER) or made_from):
            for name in _CALLS:
                getattr(library, f"intarsia_{name}").restype = ctypes.c_int64
            return library
        why = "it was made from other sources"
    except (OSError, AttributeError) as error:
        why = str(error)
    if asked == "required":
        raise ImportError(f"{FILE} cannot be used: {why}; run `python hatch_build.py`")
    return None


LIBRARY = _load()


def has_kernel() -> bool:
    """Whether the library is there."""
    return LIBRARY is not None
