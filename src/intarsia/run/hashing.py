"""Sums over the bytes of logical tensors that add up, whoever holds which bytes.

A tensor's row-major bytes are words of 64 bits, little-endian, the last one filled with zeros.
Two sums are taken of them, of which `design/0006-digests.md` says what they promise:

    words   Σ key(i) · word(i)  modulo 2**64, with key(i) = a[i mod 4096] · b[i div 4096], all odd
    crc     the remainder of CRC-32, which is a sum over GF(2)

Both are linear: bytes that are elsewhere count as zeros here.  So any part of a tensor, a strided
one or one that cuts a word in two, has a sum of its own, and the sum of the parts is the whole's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from intarsia.layout import Layout, Piece
from intarsia.planning.coalesce import Runs, runs_of
from intarsia.run.checksum import fold, remainder, shift

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
K = TypeVar("K", bound=Hashable)

BLOCK = 4096
"""Words that have keys of their own; each further block multiplies them by its key."""

STRETCH_BYTES = 256 << 10
"""What is summed twice while it lies in the processor's cache: whole blocks."""

LONG_BYTES = 32 << 10
"""Runs at least this long are summed one by one, shorter ones together."""

BATCH_BYTES = 1 << 20
"""… at most so many bytes of them at once."""

_BLOCK_BITS = BLOCK.bit_length() - 1
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_BLOCK_KEYS = 1 << 32
"""The number of the first key of blocks; before it come those of words."""


@dataclass(frozen=True, slots=True)
class Sum:
    """The sums of some bytes of a tensor, and how many bytes they are."""

    words: int = 0
    crc: int = 0
    count_bytes: int = 0

    def __add__(self, other: Sum) -> Sum:
        return Sum(
            (self.words + other.words) & _MASK,
            self.crc ^ other.crc,
            self.count_bytes + other.count_bytes,
        )


def merged(parts: Iterable[Mapping[K, Sum]]) -> dict[K, Sum]:
    """The sums that several hands took of the same things, each added up."""
    total: dict[K, Sum] = {}
    for part in parts:
        for key, value in part.items():
            total[key] = total.get(key, Sum()) + value
    return total


def sum_layout(
    layout: Layout, buffer: Bytes, itemsize: int, sizes: Mapping[str, int]
) -> dict[str, Sum]:
    """The sums of what a buffer holds of each logical tensor; `sizes` are the tensors' elements.

    >>> whole = np.arange(12, dtype=np.uint8)
    >>> left, right = (Layout.of("w", (3, 4)).narrow(1, k, k + 2) for k in (0, 2))
    >>> one = sum_layout(left, whole.reshape(3, 4)[:, :2].ravel(), 1, {"w": 12})["w"]
    >>> two = sum_layout(right, whole.reshape(3, 4)[:, 2:].ravel(), 1, {"w": 12})["w"]
    >>> one + two == sum_run(whole, 0, 12)
    True
    """
    return merged(
        {p.tensor: sum_piece(p, buffer, itemsize, sizes[p.tensor])} for p in layout.pieces
    )


def sum_piece(piece: Piece, buffer: Bytes, itemsize: int, size: int) -> Sum:
    """The sum of the elements that one piece takes from a buffer, of a tensor of `size` elements."""
    moving = tuple(loop for loop in piece.loops if loop.to)  # of repeated elements one counts
    total = Sum()
    for part in _parts(Piece(piece.tensor, piece.at, piece.to, moving).canonical(), itemsize):
        if n := part.run:
            held = buffer[part.at * itemsize : (part.at + n) * itemsize]
            total += sum_run(held, part.to * itemsize, size * itemsize)
        else:
            total += _sum_strided(part, buffer, itemsize, size * itemsize)
    return total


def sum_run(data: Bytes, start_bytes: int, whole_bytes: int) -> Sum:
    """The sum of consecutive bytes of a tensor of `whole_bytes`, the first being `start_bytes`."""
    end_bytes = start_bytes + len(data)
    first = start_bytes // 8 // BLOCK
    keys = _keys(_BLOCK_KEYS + first, -(-end_bytes // 8 // BLOCK) - first)
    words = crc = 0
    at = start_bytes
    while at < end_bytes:
        to = min(end_bytes, (at // STRETCH_BYTES + 1) * STRETCH_BYTES)
        held = data[at - start_bytes : to - start_bytes]
        crc = remainder(held, crc)
        words += _sum_words(_words(held, at % 8), at // 8, keys[at // 8 // BLOCK - first :])
        at = to
    return Sum(words & _MASK, shift(crc, whole_bytes - end_bytes), len(data))


def _sum_words(words: Words, first: int, block_keys: Words) -> int:
    """Σ key · word over words from number `first` on, whose blocks have these keys."""
    total, block = 0, 0
    skipped = first % BLOCK
    if skipped:
        n = min(BLOCK - skipped, len(words))
        total += _dot(words[:n], _word_keys()[skipped : skipped + n]) * int(block_keys[0])
        words, block = words[n:], 1
    if whole := len(words) // BLOCK:
        rows = words[: whole * BLOCK].reshape(whole, BLOCK)
        sums: Words = np.einsum("jb,b->j", rows, _word_keys())
        total += _dot(sums, block_keys[block : block + whole])
    if len(rest := words[whole * BLOCK :]):
        total += _dot(rest, _word_keys()[: len(rest)]) * int(block_keys[block + whole])
    return total


def _dot(words: Words, keys: Words) -> int:
    return int(np.einsum("i,i->", words, keys))


def _words(data: Bytes, skipped: int) -> Words:
    """Bytes as words, the first `skipped` bytes of the first and the end of the last being zero."""
    if not skipped and len(data) % 8 == 0 and data.ctypes.data % 8 == 0:
        return data.view("<u8")
    room = np.zeros(-(-(skipped + len(data)) // 8) * 8, np.uint8)
    room[skipped : skipped + len(data)] = data
    return room.view("<u8")


def _parts(piece: Piece, itemsize: int) -> Iterator[Piece]:
    """A piece cut along its largest strides until it is long runs, or fits the processor's cache."""
    most_bytes = BATCH_BYTES
    last = piece.loops[-1] if piece.loops else None
    if last and last.at == last.to == 1 and last.n * itemsize >= LONG_BYTES:
        most_bytes = last.n * itemsize
    if piece.run or piece.size * itemsize <= most_bytes:
        yield piece
        return
    top = max(piece.loops, key=lambda loop: loop.to)
    step = max(1, most_bytes // (piece.size // top.n * itemsize))
    for first in range(0, top.n, step):
        yield from _parts(piece.step(top, first, min(step, top.n - first)), itemsize)


def _sum_strided(piece: Piece, buffer: Bytes, itemsize: int, whole_bytes: int) -> Sum:
    """The sum of a small piece: its elements are brought into runs of the tensor, each in a row."""
    in_tensor = piece.flip()
    runs = runs_of(in_tensor, itemsize)
    rows = _in_rows(runs, in_tensor.to, buffer, itemsize)
    if runs.length >= LONG_BYTES:
        each = zip(rows, runs.starts.tolist(), strict=True)
        total = sum((sum_run(row, at, whole_bytes) for row, at in each), Sum())
        return replace(total, count_bytes=piece.size * itemsize)
    crcs = np.array([remainder(row) for row in rows], np.uint32)
    crcs = crcs.reshape([loop.n for loop in runs.outer])
    for loop in reversed(runs.outer):
        crcs = fold(crcs, loop.at * itemsize)
    end_bytes = int(runs.starts[-1]) + runs.length
    crc = shift(int(crcs[()]), whole_bytes - end_bytes)
    return Sum(_sum_rows(rows, runs.starts), crc, piece.size * itemsize)


def _in_rows(runs: Runs, at: int, buffer: Bytes, itemsize: int) -> Bytes:
    """The bytes of each run in a row of its own, with zeros between elements that are not neighbours."""
    loops = (*runs.outer, *runs.inner)
    bits = np.dtype(f"V{itemsize}")
    strides = tuple(loop.to * itemsize for loop in loops)
    src: NDArray[Any] = np.ndarray(
        [loop.n for loop in loops], bits, buffer.data, at * itemsize, strides
    )
    rows = np.zeros((len(runs.starts), runs.length), np.uint8)
    outer = [
        runs.length * prod([loop.n for loop in runs.outer[k + 1 :]]) for k in range(len(runs.outer))
    ]
    strides = (*outer, *(loop.at * itemsize for loop in runs.inner))
    dst: NDArray[Any] = np.ndarray(src.shape, bits, rows.data, 0, strides)
    dst[...] = src
    return rows


def _sum_rows(rows: Bytes, starts: NDArray[np.int64]) -> int:
    """Σ key · word over rows of bytes, of which each begins at its own byte of a tensor."""
    count, length = rows.shape
    width = -(-(7 + length) // 8)
    room = np.zeros((count, 8 * width), np.uint8)
    skipped = starts & 7
    for lead in set(skipped.tolist()):
        same = skipped == lead if (skipped != lead).any() else slice(None)
        room[same, lead : lead + length] = rows[same]
    words: Words = room.view("<u8")
    first, block = starts >> 3 & (BLOCK - 1), starts >> 3 >> _BLOCK_BITS
    low = int(block.min())
    block_keys = _keys(_BLOCK_KEYS + low, int(block.max()) - low + 2)
    here, beyond = _row_keys(width)
    total = _dot(np.einsum("rw,rw->r", words, here[first]), block_keys[block - low])
    cut = np.flatnonzero(first + width > BLOCK)  # rows that go on in the next block
    if len(cut):
        sums: Words = np.einsum("rw,rw->r", words[cut], beyond[first[cut]])
        total += _dot(sums, block_keys[block[cut] - low + 1])
    return total & _MASK


@lru_cache(maxsize=64)
def _row_keys(width: int) -> tuple[Words, Words]:
    """The keys of `width` words from each word of a block on: those in the block, those beyond it."""
    none = np.zeros(width, np.uint64)
    here, beyond = (
        np.append(_word_keys(), none),
        np.append(np.zeros(BLOCK, np.uint64), _word_keys()),
    )
    views = [np.lib.stride_tricks.sliding_window_view(x, width) for x in (here, beyond)]
    return views[0], views[1]


@lru_cache(maxsize=1)
def _word_keys() -> Words:
    return _keys(0, BLOCK)


def _keys(first: int, count: int) -> Words:
    """Odd keys number `first` and on: the outputs of SplitMix64 with the seed 0, the last bit set."""
    state = np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    keys: Words = (state ^ (state >> np.uint64(31))) | np.uint64(1)
    return keys
