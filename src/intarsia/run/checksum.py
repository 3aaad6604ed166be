"""CRC-32 of bytes that are written in parts, in any order.

The checksum of a whole follows from those of its parts and their lengths, so parts can be
summed by different threads and ranks.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

try:  # several times as fast as zlib, with the same answer
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32

_POLYNOMIAL = 0xEDB88320
Matrix = tuple[int, ...]


def crc32(data: Any, before: int = 0) -> int:
    """The CRC-32 of a buffer, or of what has the checksum `before` with the buffer after it."""
    return int(_crc32(data, before))


def join(first: int, second: int, second_bytes: int) -> int:
    """The checksum of two parts, one after the other.

    >>> import zlib
    >>> join(zlib.crc32(b"inlay "), zlib.crc32(b"work"), 4) == zlib.crc32(b"inlay work")
    True
    """
    bit = 0
    while second_bytes >> bit:
        if second_bytes >> bit & 1:
            first = _times(_zero_bytes(bit), first)
        bit += 1
    return first ^ second


@lru_cache(maxsize=64)
def _zero_bytes(power: int) -> Matrix:
    """The operator that appends 2**power zero bytes, over GF(2)."""
    if power == 0:
        one_bit: Matrix = (_POLYNOMIAL, *(1 << k for k in range(31)))
        matrix = one_bit
        for _ in range(3):
            matrix = _square(matrix)
        return matrix
    return _square(_zero_bytes(power - 1))


def _times(matrix: Matrix, vector: int) -> int:
    total = 0
    for column in matrix:
        if vector & 1:
            total ^= column
        vector >>= 1
        if not vector:
            break
    return total


def _square(matrix: Matrix) -> Matrix:
    return tuple(_times(matrix, column) for column in matrix)
