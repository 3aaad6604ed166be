"""Copies turned into few, large byte ranges to read.

A copy reads runs: stretches that are contiguous in the source file.  Runs that touch, or
nearly touch, are read together.  How much more than the needed bytes that may cost is
bounded: a gap is read over only where it is small beside the run before it, and runs too
short to be worth a request of their own are read with what lies between them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from intarsia.frozen import frozen
from intarsia.layout import Loop, Piece

GAP_RATIO = 0.03
"""A gap is read over where it is at most this part of the run before it."""

LEAST_RUN_BYTES = 64
"""Shorter runs are read together with what lies between them."""

MOST_OVER_READ = 16
"""… unless that reads more than this many times the needed bytes."""

Ints = NDArray[np.int64]


@frozen
class SourceRuns:
    """Equal stretches of a source that one copy reads: first bytes, and their one length.

    `outer` are the loops over runs, `inner` those within one.
    """

    starts: Ints
    length: int
    outer: tuple[Loop, ...]
    inner: tuple[Loop, ...]


def grid(loops: tuple[Loop, ...], stride_of: str, scale: int) -> Ints:
    """Every offset that these loops visit on one side, outermost loop first."""
    offsets = np.zeros(1, np.int64)
    for loop in loops:
        steps = np.arange(loop.n, dtype=np.int64) * (getattr(loop, stride_of) * scale)
        offsets = (offsets[:, None] + steps).reshape(-1)
    return offsets


def runs_of(piece: Piece, itemsize: int, base_bytes: int = 0) -> SourceRuns:
    """The stretches of the source that a copy reads.

    >>> runs_of(Piece("", 2, 0, (Loop(2, 1024, 512), Loop(512, 1, 1))), 2).starts.tolist()
    [4, 2052]
    """
    loops = sorted(piece.loops, key=lambda loop: loop.at)
    reach, held, taken = 1, 1, 0
    for loop in loops:
        further, more = reach + (loop.n - 1) * loop.at, held * (loop.n if loop.at else 1)
        short = reach * itemsize < LEAST_RUN_BYTES and further <= MOST_OVER_READ * more
        if loop.at > reach and not short:
            break
        reach, held = further, more
        taken += 1
    outer, inner = tuple(reversed(loops[taken:])), tuple(reversed(loops[:taken]))
    starts = base_bytes + piece.at * itemsize + grid(outer, "at", itemsize)
    return SourceRuns(starts, reach * itemsize, outer, inner)


def merge_runs(starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """The first and last-plus-one bytes of the ranges to read, in order, for runs in any order."""
    order = np.argsort(starts, kind="stable")
    first, length = starts[order], lengths[order]
    end = np.maximum.accumulate(first + length)
    fresh = np.ones(len(first), bool)
    fresh[1:] = first[1:] > end[:-1] + (length[:-1] * GAP_RATIO).astype(np.int64)
    heads = np.flatnonzero(fresh)
    tails = np.append(heads[1:], len(first)) - 1
    return first[heads], end[tails]
