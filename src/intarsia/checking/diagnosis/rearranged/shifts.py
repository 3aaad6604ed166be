"""Flat ranges that begin some elements too early or too late."""

from __future__ import annotations

from collections.abc import Iterator

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.hypothesis import Hypothesis
from intarsia.checking.diagnosis.rearranged.keys import KEY_ELEMENTS
from intarsia.layout import Layout, concat, padding
from intarsia.mesh import Box
from intarsia.planning.window import flat_start

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
        needle = e.read(here, Box((lo,), (KEY_ELEMENTS,)), e.b).tobytes()
        first, last = max(0, lo - REACH), min(n, lo + KEY_ELEMENTS + REACH)
        hay = e.read(flat, Box((first,), (last - first,))).tobytes()
        for at in _found(hay, needle, e.pair.a.dtype.itemsize):
            k = lo - (first + at)
            if k and len({*needle}) > 2:
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
