"""What a tensor may claim: bounds that every real one keeps, so that none need be trusted."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.errors import FormatError

MAX_AXES = 64
"""As many axes as torch and NumPy give a tensor."""

MAX_NAME = 1024
"""The longest name; those of real models stay below 200 characters."""


def bytes_of(shape: Sequence[int], itemsize: int, where: str) -> int:
    """The bytes of a tensor; raise where no address reaches its last element, nor that of its axes.

    >>> bytes_of((3, 0, 4), 2, "here")
    0
    """
    size = extent = itemsize
    for n in shape:
        size *= n
        extent *= max(n, 1)
        if extent >= 1 << 63:
            raise FormatError("a tensor that needs more than 2**63 bytes", at=where)
    return size
