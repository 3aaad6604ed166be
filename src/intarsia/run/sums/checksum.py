"""CRC-32 of bytes that are written in parts, in any order.

The checksum of a whole follows from those of its parts and their lengths, so parts can be
summed by different threads and ranks.  Underneath, bytes are a polynomial over GF(2) and
their remainder is linear: `remainder` is that linear part, `shift` moves it before bytes
that are zero, and the remainders of disjoint bytes of one whole add up by XOR.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:  # several times as fast as zlib, with the same answer
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32

_POLYNOMIAL = 0xEDB88320
_ONES = 0xFFFFFFFF
Matrix = tuple[int, ...]
Lookup = tuple[tuple[int, ...], ...]
Remainders = NDArray[np.uint32]


def crc32(data: Any, before: int = 0) -> int:
    """The CRC-32 of a buffer, or of what has the checksum `before` with the buffer after it."""
    return int(_crc32(data, before))


def crc32_of(read: Callable[[int, int], Any], start: int, length: int, window_bytes: int) -> int:
    """The CRC-32 of a stretch of a file, which `read` gives by place and size, one window after another."""
    found = 0
    for at in range(0, length, window_bytes):
        found = crc32(read(start + at, min(window_bytes, length - at)), found)
    return found


def join(first: int, second: int, second_bytes: int) -> int:
    """The checksum of two parts, one after the other.

    >>> import zlib
    >>> join(zlib.crc32(b"inlay "), zlib.crc32(b"work"), 4) == zlib.crc32(b"inlay work")
    True
    """
    return shift(first, second_bytes) ^ second


def remainder(data: Any, before: int = 0) -> int:
    """The linear part of the CRC-32 of a buffer that follows bytes with the remainder `before`.

    >>> remainder(b"\\0\\0"), remainder(b"b", remainder(b"a")) == remainder(b"ab")
    (0, True)
    """
    return int(_crc32(data, before ^ _ONES)) ^ _ONES


def full(crc: int, count_bytes: int) -> int:
    """The CRC-32 of bytes with this remainder.

    >>> full(remainder(b"inlay"), 5) == crc32(b"inlay")
    True
    """
    return crc ^ shift(_ONES, count_bytes) ^ _ONES


def shift(crc: int, count_bytes: int) -> int:
    """A remainder, after `count_bytes` more bytes that are zero.

    >>> shift(remainder(b"a"), 2) == remainder(b"a\\0\\0")
    True
    """
    power = 0
    while crc and count_bytes >> power:
        if count_bytes >> power & 1:
            crc = _look_up(_lookup(1 << power), crc)
        power += 1
    return crc


def fold(crcs: Remainders, stride_bytes: int) -> Remainders:
    """The sums over the last axis of remainders whose bytes end `stride_bytes` apart, at the last end."""
    while crcs.shape[-1] > 1:
        if crcs.shape[-1] % 2:
            crcs = np.concatenate([np.zeros_like(crcs[..., :1]), crcs], -1)
        table = _arrays(stride_bytes)
        early, late = crcs[..., 0::2], crcs[..., 1::2]
        moved = table[0][early & 255] ^ table[1][early >> 8 & 255]
        moved ^= table[2][early >> 16 & 255] ^ table[3][early >> 24]
        crcs = moved ^ late
        stride_bytes *= 2
    return crcs[..., 0]


def _look_up(table: Lookup, crc: int) -> int:
    return (
        table[0][crc & 255]
        ^ table[1][crc >> 8 & 255]
        ^ table[2][crc >> 16 & 255]
        ^ table[3][crc >> 24]
    )


@lru_cache(maxsize=256)
def _arrays(count_bytes: int) -> NDArray[np.uint32]:
    return np.array(_lookup(count_bytes), np.uint32)


@lru_cache(maxsize=256)
def _lookup(count_bytes: int) -> Lookup:
    """What `count_bytes` zero bytes make of each byte of a remainder."""
    matrix = _zero_bytes(count_bytes)
    tables = []
    for first in range(0, 32, 8):
        table = [0]
        for column in matrix[first : first + 8]:
            table += [column ^ entry for entry in table]
        tables.append(tuple(table))
    return tuple(tables)


def _zero_bytes(count_bytes: int) -> Matrix:
    """The operator that appends zero bytes, over GF(2): the remainder that each bit becomes."""
    if count_bytes & (count_bytes - 1) == 0:
        return _power(count_bytes.bit_length() - 1)
    return tuple(shift(1 << bit, count_bytes) for bit in range(32))


@lru_cache(maxsize=64)
def _power(power: int) -> Matrix:
    """The operator that appends 2**power zero bytes."""
    if power == 0:
        matrix: Matrix = (_POLYNOMIAL, *(1 << k for k in range(31)))
        for _ in range(3):
            matrix = _square(matrix)
        return matrix
    return _square(_power(power - 1))


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
