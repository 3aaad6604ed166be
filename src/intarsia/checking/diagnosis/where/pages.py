"""Damage of a disk: differences that fill whole pages or sectors of a file."""

from __future__ import annotations

from math import prod

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.finding import Finding
from intarsia.checking.diagnosis.hypotheses.hypothesis import ENOUGH
from intarsia.checking.diagnosis.where.chunks import Chunks
from intarsia.checking.diagnosis.where.places import Place
from intarsia.checking.diagnosis.where.whereabouts import Spots, Whereabouts, unit
from intarsia.layout import unravel
from intarsia.mesh import share

DAMAGED = "damaged-pages"

NEARLY_FULL = 0.98
"""The share of a grid of rows and columns from which on the grid is what differs."""

FEW_RANKS = 16
"""Up to so many ranks, a flat block that fills pages is rather a rank's than a disk's."""


def whereabouts(place: Place, chunks: Chunks) -> Whereabouts:
    """The differences of a tensor as indices, and as bytes of both sides."""
    first, last = (
        unravel(k, place.shape) if place.differing else () for k in (place.first, place.last)
    )
    return Whereabouts(first, last, place.differing, place.axes, a=chunks.a, b=chunks.b)


def damaged_pages(e: Evidence, place: Place, where: Whereabouts) -> Finding | None:
    """A finding about pages of a file that differ as wholes, and are no rows, columns or blocks."""
    sides = {e.right: where.b, e.left: where.a}
    filled = {name: spots for name, spots in sides.items() if _in_pages(spots)}
    if place.differing < ENOUGH or not filled or _is_grid(place) or _is_shard(place):
        return None
    zero = [name for name, spots in filled.items() if all(s.zero for s in spots.spots)]
    side = zero[0] if zero else next(iter(filled))
    size = min(s.page for s in filled[side].spots if s.page)
    files = tuple(sorted({s.file for s in filled[side].spots}))
    fault = f"whole {unit(size)}s of {', '.join(files)}"
    if zero:
        fault += f" of {side} are zero"
    else:
        fault += f" of {side} differ" if len(filled) == 1 else " differ, of A or of B"
    n = place.differing
    text = f"{fault} ({n:,} elements)"
    return Finding(e.name, DAMAGED, text, fault, fault, n, n, files=files)


def _in_pages(found: Spots) -> bool:
    """Whether the differences of one side fill pages, of which some end within the tensor."""
    spots = found.spots
    whole = all(s.page or s.elements == s.held for s in spots)
    return whole and any(s.page for s in spots) and not found.more and not found.unseen


def _is_grid(place: Place) -> bool:
    """Whether some rows by some columns differ, as a rank's do: pages do so only by accident."""
    counts = [s.end - s.first if s.count is None else s.count for s in place.axes]
    if place.differing < NEARLY_FULL * prod(counts):
        return False
    if prod(counts[:-1]) > 1 or counts[-1] == place.shape[-1]:
        return True
    return any(
        share(place.shape[c.axis], c.parts, c.rank)
        == (place.box.offsets[c.axis], place.box.shape[c.axis])
        for c in place.cuts or ()
    )


def _is_shard(place: Place) -> bool:
    """Whether a flat range differs that one of few ranks holds: it may begin and end with pages."""
    flat = place.flat
    return flat is not None and 0 < flat.parts <= FEW_RANKS
