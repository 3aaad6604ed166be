"""What begins too early or too late: parts cut out of a fused tensor, and flat ranges."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypotheses.groups import FusedParts
from intarsia.checking.diagnosis.hypothesis import Hypothesis
from intarsia.checking.diagnosis.rearranged.keys import KEY_ELEMENTS, MOST_ROWS, followers, row_keys
from intarsia.checking.diagnosis.rearranged.order import along, compose, unmoved
from intarsia.layout import Layout, concat, padding
from intarsia.mesh import Box
from intarsia.planning.window import flat_start
from intarsia.value.bits import Bits


def split_hypotheses(e: Evidence, group: FusedParts, mine: Layout) -> Iterator[Hypothesis]:
    """The parts of a group fused as in A, and cut in the wrong place in B."""
    own = [k for k, part in enumerate(group.parts) if part.tensors == (e.name,)]
    total = sum(group.sizes)
    if len(own) != 1 or e.pair.a.dtype != e.pair.b.dtype or not e.shape or total > MOST_ROWS:
        return
    start, n = sum(group.sizes[: own[0]]), e.shape[0]
    front = group.fused.reshape(total, -1)
    width = min(KEY_ELEMENTS, front.shape[1])
    left = e.read(front, Box((0, 0), (total, width))).reshape(total, -1)
    count = followers(left)
    known = {key: j for j, key in enumerate(row_keys(left, count))}
    if 2 * len(known) < total:
        return
    here = Layout.of(e.pair.b.name, (n, e.whole.size // n))
    gaps = set()
    for row in {n // 4, n // 2, 3 * n // 4}:
        if row + count < n:
            key = e.read(here, Box((row, 0), (1 + count, width)), e.b).tobytes()
            gaps |= {known[key] - start - row} if key in known else set()
    for gap in sorted(gaps, key=abs):
        if gap and abs(gap) < min(group.sizes) and _crosses(e, group, left, gap):
            at = gap % total
            turned = concat([unmoved(total).narrow(0, at, total), unmoved(total).narrow(0, 0, at)])
            how_far = f"{abs(gap)} row{'s' if abs(gap) > 1 else ''}"
            when = "late" if gap > 0 else "early"
            text = f"{group.name} are cut out of the fused tensor {how_far} too {when} in {e.right}"
            layout = compose(mine, along(group.fused, 0, turned))
            yield Hypothesis("split-misplaced", text, layout, ("split", gap))


def _crosses(e: Evidence, group: FusedParts, left: Bits, gap: int) -> bool:
    """Whether a part of B ends with a row of the next part in A, or begins with one of the part before.

    Rows that moved inside of each part, and no further, were not cut out of a fused tensor.
    """
    start = 0
    for part in group.parts:
        n, own = part.shape[0], part.tensors == (e.name,)
        row = n - 1 if gap > 0 else 0
        beyond = start + row + gap
        start += n
        found = e.b.manifest.logical.get(e.pair.b.name if own else part.tensors[0])
        if not 0 <= beyond < len(left) or len(part.tensors) > 1 or found is None:
            continue
        if found.dtype == e.pair.b.dtype and found.shape and found.shape[0] == n:
            here = Layout.of(found.name, (n, found.size // n))
            held = e.read(here, Box((row, 0), (1, left.shape[1])), e.b)
            if np.array_equal(held.ravel(), left[beyond]):
                return True
    return False


REACH = 1 << 16
"""How many elements a flat range may have moved."""


def shift_hypotheses(e: Evidence) -> Iterator[Hypothesis]:
    """A flat range that begins some elements too early or too late."""
    n = e.whole.size
    flat = e.whole.reshape(n)
    if n < 4 * KEY_ELEMENTS or not e.first:
        return
    start = flat_start(Box(e.first, e.shape), Box.whole(e.shape))
    for place in (start + (n - start) // 2, start):
        lo = max(0, min(place, n - KEY_ELEMENTS))
        here = Layout.of(e.pair.b.name, (n,))
        needle = e.read(here, Box((lo,), (KEY_ELEMENTS,)), e.b)
        if (needle == needle[0]).all():
            continue  # found everywhere
        first, last = max(0, lo - REACH), min(n, lo + KEY_ELEMENTS + REACH)
        hay = e.read(flat, Box((first,), (last - first,))).tobytes()
        for at in _found(hay, needle.tobytes(), e.pair.a.dtype.itemsize):
            k = lo - (first + at)
            if k:
                yield from _moved(e, flat, k)
                return


def _moved(e: Evidence, flat: Layout, k: int) -> Iterator[Hypothesis]:
    n = flat.size
    kept = flat.narrow(0, max(0, -k), n - max(0, k))
    text = f"content shifted by {k} element{'s' if abs(k) > 1 else ''}"
    around = flat.narrow(0, n - k, n) if k > 0 else flat.narrow(0, 0, -k)
    for rest, more in ((padding(abs(k)), ""), (around, " around the end")):
        parts = [rest, kept] if k > 0 else [kept, rest]
        layout = concat(parts).reshape(*e.shape)
        yield Hypothesis("shifted", text + more, layout, ("flat", k, more))


def _found(hay: bytes, needle: bytes, itemsize: int) -> Iterator[int]:
    at = hay.find(needle)
    while at >= 0:
        if at % itemsize == 0:
            yield at // itemsize
        at = hay.find(needle, at + 1)
