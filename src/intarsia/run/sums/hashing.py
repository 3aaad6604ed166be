"""Sums over the bytes of logical tensors that add up, whoever holds which bytes.

A tensor's row-major bytes are words of 64 bits, little-endian, the last one filled with zeros,
and 512 words are a page.  Two sums are taken, of which `design/0006-digests.md` says what they
promise:

    pages   Σ key(page) · Σ words of the page  modulo 2**64, every key odd
    crc     the remainder of CRC-32, which is a sum over GF(2)

Both are linear: bytes that are elsewhere count as zeros here.  So any part of a tensor, a strided
one or one that cuts a word in two, has a sum of its own, and the sum of the parts is the whole's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from intarsia.frozen import frozen
from intarsia.kernel.library import has_kernel
from intarsia.kernel.summing import sum_memory
from intarsia.layout import Layout, Piece
from intarsia.planning.coalesce import Ints, SourceRuns, runs_of
from intarsia.run.sums.checksum import crc32, fold, full, remainder, shift
from intarsia.run.sums.pages import PAGE, PAGE_BYTES, Words, keys_of_pages, sum_rows

Bytes = NDArray[np.uint8]
Reader = Callable[[int, int], Bytes]
"""Brings bytes `lo` to `hi` of something, to be used before the next are asked for."""

K = TypeVar("K", bound=Hashable)

STRETCH_BYTES = 128 * PAGE_BYTES
"""What is read, and summed twice while it lies in the processor's cache; a multiple of a page."""

LONG_BYTES = 32 << 10
"""Runs at least this long are summed one by one, shorter ones together."""

BATCH_BYTES = 1 << 20
"""… at most so many bytes of them at once."""

_MASK = (1 << 64) - 1


@frozen
class Sum:
    """The sums of some bytes of a tensor, and how many bytes they are."""

    pages: int = 0
    crc: int = 0
    count_bytes: int = 0

    def __add__(self, other: Sum) -> Sum:
        return Sum(
            (self.pages + other.pages) & _MASK,
            self.crc ^ other.crc,
            self.count_bytes + other.count_bytes,
        )


def merged_sums(parts: Iterable[Mapping[K, Sum]]) -> dict[K, Sum]:
    """The sums that several hands took of the same things, each added up."""
    total: dict[K, Sum] = {}
    for part in parts:
        add_to(total, part)
    return total


def add_to(total: dict[K, Sum], part: Mapping[K, Sum]) -> None:
    """Add the sums that one more hand took."""
    for key, value in part.items():
        total[key] = total[key] + value if key in total else value


def sum_layout(
    layout: Layout,
    buffer: Bytes | Reader,
    itemsize: int,
    sizes: Mapping[str, int],
    stretch_bytes: int = STRETCH_BYTES,
) -> dict[str, Sum]:
    """The sums of what a buffer holds of each logical tensor; `sizes` are the tensors' elements.

    >>> whole = np.arange(12, dtype=np.uint8)
    >>> left, right = (Layout.of("w", (3, 4)).narrow(1, k, k + 2) for k in (0, 2))
    >>> one = sum_layout(left, whole.reshape(3, 4)[:, :2].ravel(), 1, {"w": 12})["w"]
    >>> two = sum_layout(right, whole.reshape(3, 4)[:, 2:].ravel(), 1, {"w": 12})["w"]
    >>> one + two == sum_run(whole, 0, 12)
    True
    """
    return merged_sums(
        {p.tensor: _sum_piece(p, buffer, itemsize, sizes[p.tensor], stretch_bytes)}
        for p in layout.pieces
    )


def _sum_piece(
    piece: Piece, buffer: Bytes | Reader, itemsize: int, size: int, stretch_bytes: int
) -> Sum:
    """The sum of the elements that one piece takes from a buffer, of a tensor of `size` elements."""
    moving = tuple(loop for loop in piece.loops if loop.to)  # of repeated elements one counts
    total = Sum()
    for part in _parts(Piece(piece.tensor, piece.at, piece.to, moving).canonical(), itemsize):
        start, length = part.at * itemsize, (part.span + 1) * itemsize
        if part.run:
            found = _scan(_after(buffer, start), length, part.to * itemsize, stretch_bytes)
            total += found.within(size * itemsize)
        else:
            held = _reader(buffer)(start, start + length)
            total += _sum_strided(replace(part, at=0), held, itemsize, size * itemsize)
    return total


def sum_buffer(
    layout: Layout,
    buffer: Bytes,
    itemsize: int,
    sizes: Mapping[str, int],
    stretch_bytes: int = STRETCH_BYTES,
) -> tuple[dict[str, Sum], int]:
    """What `sum_layout` says of a buffer, and the buffer's CRC-32, in one pass where that can be."""
    pieces = sorted(layout.pieces, key=lambda piece: piece.at)
    ends = [0, *(piece.at + piece.run for piece in pieces)]
    if [piece.at for piece in pieces] + [layout.size] != ends:
        return sum_layout(layout, buffer, itemsize, sizes, stretch_bytes), crc32(buffer)
    runs = [
        _scan(_after(buffer, p.at * itemsize), p.run * itemsize, p.to * itemsize, stretch_bytes)
        for p in pieces
    ]
    crc = 0
    for run in runs:
        crc = shift(crc, run.length_bytes) ^ run.crc
    found = (
        {p.tensor: run.within(sizes[p.tensor] * itemsize)}
        for p, run in zip(pieces, runs, strict=True)
    )
    return merged_sums(found), full(crc, len(buffer))


def sum_run(
    data: Bytes, start_bytes: int, whole_bytes: int, stretch_bytes: int = STRETCH_BYTES
) -> Sum:
    """The sum of consecutive bytes of a tensor of `whole_bytes`, the first being `start_bytes`."""
    return sum_read(data, len(data), start_bytes, whole_bytes, stretch_bytes)


def sum_read(
    read: Bytes | Reader, length_bytes: int, start_bytes: int, whole_bytes: int, stretch_bytes: int
) -> Sum:
    """The sum of consecutive bytes of a tensor that are read a stretch at a time."""
    return _scan(read, length_bytes, start_bytes, stretch_bytes).within(whole_bytes)


def _reader(buffer: Bytes | Reader) -> Reader:
    return (lambda lo, hi: buffer[lo:hi]) if isinstance(buffer, np.ndarray) else buffer


def _after(buffer: Bytes | Reader, start_bytes: int) -> Bytes | Reader:
    """What follows the first bytes."""
    if isinstance(buffer, np.ndarray):
        return buffer[start_bytes:]
    return lambda lo, hi: buffer(start_bytes + lo, start_bytes + hi)


@frozen
class _Scan:
    """Both sums of consecutive bytes, as if the tensor ended with them."""

    pages: int
    crc: int
    end_bytes: int
    length_bytes: int

    def within(self, whole_bytes: int) -> Sum:
        """The sum as it counts in a tensor of `whole_bytes`."""
        return Sum(self.pages, shift(self.crc, whole_bytes - self.end_bytes), self.length_bytes)


def _scan(buffer: Bytes | Reader, length_bytes: int, start_bytes: int, stretch_bytes: int) -> _Scan:
    """Both sums of bytes that are read a stretch at a time, the first being the tensor's `start_bytes`."""
    end_bytes = start_bytes + length_bytes
    if isinstance(buffer, np.ndarray) and has_kernel():
        found = sum_memory([buffer[:length_bytes]], [start_bytes])
        return _Scan(found.pages[0], found.crcs[0], end_bytes, length_bytes)
    read = _reader(buffer)
    first = start_bytes // PAGE_BYTES
    sums = np.zeros(-(-end_bytes // PAGE_BYTES) - first, np.uint64)
    lead = min(-start_bytes % PAGE_BYTES, length_bytes)
    rest = (length_bytes - lead) % PAGE_BYTES
    crc = 0
    if lead:
        data = read(0, lead)
        crc = remainder(data)
        sums[0] = np.add.reduce(_words(data, start_bytes % 8))
    # Little is done between the calls that release the interpreter: threads wait for each other there.
    page = 1 if lead else 0
    for at in range(lead, length_bytes - rest, stretch_bytes):
        data = read(at, min(at + stretch_bytes, length_bytes - rest))
        crc = remainder(data, crc)
        held = _aligned_words(data).reshape(-1, PAGE)
        np.add.reduce(held, axis=1, out=sums[page : page + len(held)])
        page += len(held)
    if rest:
        data = read(length_bytes - rest, length_bytes)
        crc = remainder(data, crc)
        sums[-1] = np.add.reduce(_words(data, 0))
    pages = int(np.einsum("i,i->", sums, keys_of_pages(np.arange(first, first + len(sums)))))
    return _Scan(pages, crc, end_bytes, length_bytes)


def _words(data: Bytes, skipped: int) -> Words:
    """Bytes as words, the first `skipped` bytes of the first and the end of the last being zero."""
    room = np.zeros(-(-(skipped + len(data)) // 8) * 8, np.uint8)
    room[skipped : skipped + len(data)] = data
    return room.view("<u8")


def _aligned_words(data: Bytes) -> Words:
    """Bytes as words, where a processor reads words."""
    words: Words = data.view("<u8")
    return words if words.flags.aligned else data.copy().view("<u8")


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


def _in_rows(runs: SourceRuns, at: int, buffer: Bytes, itemsize: int) -> Bytes:
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


def _sum_rows(rows: Bytes, starts: Ints) -> int:
    """Σ key · words over rows of bytes, each of which begins at its own byte of a tensor."""
    words = _row_words(rows, starts)
    count, width = words.shape
    return int(sum_rows(words.reshape(-1), np.full(count, width), starts >> 3).sum())


def _row_words(rows: Bytes, starts: Ints) -> Words:
    """Rows of bytes as rows of words, with zeros where a row has a part of a word only."""
    skipped = starts & 7
    count, length = rows.shape
    if length % 8 == 0 and not skipped.any():
        return rows.view("<u8")
    room = np.zeros((count, -(-(7 + length) // 8) * 8), np.uint8)
    for lead in set(skipped.tolist()):
        same = skipped == lead if (skipped != lead).any() else slice(None)
        room[same, lead : lead + length] = rows[same]
    return room.view("<u8")
