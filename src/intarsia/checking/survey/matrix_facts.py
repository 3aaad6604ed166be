"""A matrix in a few numbers, summed block by block: what faults look like is seen in them.

The bits of its elements, taken as whole numbers, are summed along every row and every column.
A row of zeros sums to zero; equal rows, blocks, experts and layers have equal sums.  Sums add,
so they come out alike however a matrix was cut into chunks and blocks, and one pass will do.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intarsia.checking.naming import StackedMatrix
from intarsia.dtypes import DType
from intarsia.frozen import frozen

Sums = NDArray[np.uint64]
Run = tuple[int, int]

CUTS = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64)
"""How many equal parts ranks cut a matrix into."""

FEWEST_ROWS = 3
"""Blocks of fewer rows may be equal by chance."""

_HASHED_AT_ONCE = 1 << 14


@frozen
class Repeat:
    """Two of `blocks` equal parts of a matrix that hold the same rows (or columns)."""

    blocks: int
    first: int
    second: int
    every: bool

    def runs(self, length: int) -> tuple[Run, Run]:
        """Where the two lie on an axis of this length."""
        size = length // self.blocks
        a, b = self.first * size, self.second * size
        return (a, a + size), (b, b + size)


@frozen
class MatrixFacts:
    """What the sums of one matrix show; the sums themselves are not kept."""

    unit: StackedMatrix
    digest: bytes
    constant: bool
    zero: bool
    zero_rows: tuple[Run, ...] = ()
    zero_columns: tuple[Run, ...] = ()
    repeated_rows: Repeat | None = None
    repeated_columns: Repeat | None = None
    alike_at_end: int = 0
    zero_row_count: int = 0
    zero_column_count: int = 0

    @property
    def telling(self) -> bool:
        """Whether equality with another matrix means anything: it is one, and not constant."""
        return not self.constant and self.unit.rows > 1 and self.unit.columns > 1


def matrix_facts(
    unit: StackedMatrix,
    dtype: DType,
    rows: Sums,
    columns: Sums,
    padded: NDArray[np.bool_] | None = None,
    constant: bool | None = None,
    widths: tuple[int, int] = (1, 1),
) -> MatrixFacts:
    """What is known of a matrix whose rows and columns have these sums.

    `widths` says how many neighbours share one; then whether it is `constant` is known.
    """
    hashed = hash_of_sums(rows, 0) + hash_of_sums(columns, len(rows))
    digest = head_of_digest(dtype, unit) + hashed.tobytes()
    if constant is None:
        constant = _alike(rows) and _alike(columns)
    if constant:
        return MatrixFacts(unit, digest, True, not rows.any())
    empty = rows == 0
    if padded is not None:
        empty &= ~padded
    wide = is_wide(unit, dtype)
    by_row, by_column = widths
    exact = by_row == 1
    return MatrixFacts(
        unit,
        digest,
        False,
        False,
        _spread(runs(empty), by_row, unit.rows),
        _spread(runs(columns == 0), by_column, unit.columns),
        repeat_in(rows) if wide and not unit.rows % by_row else None,
        repeat_in(columns) if wide and not unit.columns % by_column else None,
        _alike_at_end(rows if padded is None else rows[~padded]) if exact else 0,
        int(np.count_nonzero(empty)) if exact else 0,
        int(np.count_nonzero(columns == 0)) if by_column == 1 else 0,
    )


def ordinary_facts(unit: StackedMatrix, digest: bytes) -> MatrixFacts:
    """What is known of a matrix whose sums show nothing odd."""
    return MatrixFacts(unit, digest, False, False, alike_at_end=1)


def head_of_digest(dtype: DType, unit: StackedMatrix) -> bytes:
    """What distinguishes digests of matrices of one kind from those of others."""
    return f"{dtype} {unit.rows} {unit.columns} ".encode()


def hash_of_sums(sums: Sums, first: int) -> Sums:
    """The hash of sums, the first being number `first` of a matrix, in twice 64 bits; hashes of parts add.

    Each sum is mixed with its number (SplitMix64).  The compiled `survey.c` takes the same.
    """
    found = np.zeros(2, np.uint64)
    for lo in range(0, len(sums), _HASHED_AT_ONCE):
        some = sums[lo : lo + _HASHED_AT_ONCE]
        numbers: Sums = np.arange(first + lo + 1, first + lo + 1 + len(some), dtype=np.uint64)
        state = some + numbers * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
        again = (state ^ (state >> np.uint64(29))) * np.uint64(0xD6E8FEB86659FD93)
        found += np.array([state.sum(), again.sum()])
    return found


def is_wide(unit: StackedMatrix, dtype: DType) -> bool:
    """Whether equal blocks of a matrix may say anything."""
    return unit.rows > FEWEST_ROWS and unit.columns > FEWEST_ROWS and dtype.name != "BOOL"


def _spread(found: tuple[Run, ...], width: int, length: int) -> tuple[Run, ...]:
    """Runs of sums as runs of the rows or columns that they are of."""
    return tuple((lo * width, min(hi * width, length)) for lo, hi in found)


def _alike_at_end(rows: Sums) -> int:
    """How many of the last rows have the same sum."""
    if not len(rows):
        return 0
    others = rows[::-1] != rows[-1]
    return int(others.argmax()) if others.any() else len(rows)


def _alike(values: NDArray[Any]) -> bool:
    return bool(not len(values) or (values == values[0]).all())


def runs(marks: NDArray[np.bool_]) -> tuple[Run, ...]:
    """The four longest stretches of marks, as `(first, end)`.

    >>> runs(np.array([True, False, True, True]))
    ((2, 4), (0, 1))
    """
    if not marks.any():
        return ()
    edges = np.flatnonzero(np.diff(marks.astype(np.int8), prepend=0, append=0))
    pairs = edges.reshape(-1, 2)
    longest = np.argsort(pairs[:, 0] - pairs[:, 1], kind="stable")[:4]
    return tuple((int(lo), int(hi)) for lo, hi in pairs[longest])


def repeat_in(sums: Sums) -> Repeat | None:
    """The largest equal parts of an axis that hold the same, unless that says nothing.

    A part says something where most of its sums differ from each other: rows that are alike
    (of tokens never trained) make equal blocks in a sound checkpoint.
    """
    starts, cuts = _parts_of(len(sums))
    firsts = iter(sums[starts].tolist())
    for n in cuts:
        if len({*islice(firsts, n)}) == n:
            continue  # equal parts begin alike
        parts = sums.reshape(n, -1)
        seen: dict[bytes, int] = {}
        for k, part in enumerate(parts):
            first = seen.setdefault(blake2b(part.data, digest_size=16).digest(), k)
            if first != k and 2 * len(np.unique(part)) > len(part):
                return Repeat(n, first, k, every=bool((parts == parts[0]).all()))
    return None


@lru_cache(maxsize=1024)
def _parts_of(length: int) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """The cuts that suit an axis of this length, and where their parts begin, one cut after another."""
    cuts = tuple(n for n in CUTS if not length % n and length // n >= FEWEST_ROWS)
    starts = [part * (length // n) for n in cuts for part in range(n)]
    return np.array(starts, np.int64), cuts
