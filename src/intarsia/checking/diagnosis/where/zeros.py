"""Zeros that lie in other places on either side: neither is the other moved, and each has lost numbers."""

from __future__ import annotations

import numpy as np

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.finding import Finding
from intarsia.checking.diagnosis.hypothesis import ENOUGH, Mask
from intarsia.checking.diagnosis.names import as_ranges
from intarsia.checking.diagnosis.where.chunks import whereabouts_of

_MOST_ROWS = 1 << 20
"""Of so many rows it is known which differ."""

_MOST_RANGES = 4
"""Beyond so many ranges, places are counted."""

ZEROS_MOVED = "zeros-moved"


def zeros_moved(e: Evidence) -> Finding | None:
    """That either side is zero wherever it differs from the other, where hardly anything else is zero."""
    if not e.shape or e.shape[0] > _MOST_ROWS:
        return None
    rows = {e.left: np.zeros(e.shape[0], np.bool_), e.right: np.zeros(e.shape[0], np.bool_)}
    counts, held, equal = dict.fromkeys(rows, 0), 0, 0
    for w in e.windows():
        zeros = {e.left: w.unequal & (w.u == 0), e.right: w.unequal & (w.v == 0)}
        if (w.unequal & ~(zeros[e.left] | zeros[e.right])).any():
            return None
        for side, marks in zeros.items():
            counts[side] += int(np.count_nonzero(marks))
            first, n = w.box.offsets[0], w.box.shape[0]
            rows[side][first : first + n] |= _by_row(marks, n)
        held += int(np.count_nonzero(~w.unequal & (w.u != 0)))
        equal += int(np.count_nonzero(~w.unequal))
    # Among zeros the numbers are what moved.
    if min(counts.values()) < ENOUGH or 2 * held < equal:
        return None
    what = "rows" if len(e.shape) > 1 else "elements"
    places = tuple(f"{side} in {_places(x, what)}" for side, x in rows.items())
    text, n = (
        f"each side is zero where the other is not: {' and '.join(places)}",
        sum(counts.values()),
    )
    where = whereabouts_of(e)
    return Finding(e.name, ZEROS_MOVED, f"{text} ({n:,} elements)", text, places, n, n, where=where)


def _places(rows: Mask, what: str) -> str:
    """Where on the first axis marks are, or how many where they are scattered."""
    at = np.flatnonzero(rows)
    scattered = np.count_nonzero(np.diff(at) != 1) >= _MOST_RANGES
    return f"{len(at):,} {what}" if scattered else f"{what} {as_ranges(at.tolist())}"


def _by_row(marks: Mask, rows: int) -> Mask:
    return np.asarray(marks.reshape(rows, -1).any(axis=1))
