"""Damage of a disk: differences that fill whole pages or sectors of a file."""

from __future__ import annotations

from math import prod

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.finding import Finding
from intarsia.checking.diagnosis.hypothesis import ENOUGH
from intarsia.checking.diagnosis.where.elements import DifferingElements
from intarsia.checking.diagnosis.where.whereabouts import DifferingChunks, Whereabouts, unit
from intarsia.mesh import share

DAMAGED = "damaged-pages"

NEARLY_FULL = 0.98
"""The share of a grid of rows and columns from which on the grid is what differs."""

FEW_RANKS = 16
"""Up to so many ranks, a flat block that fills pages is rather a rank's than a disk's."""


def damaged_pages(e: Evidence, where: Whereabouts) -> Finding | None:
    """A finding about pages of a file that differ as wholes, and are no rows, columns or blocks."""
    sides, elements = {e.right: where.b, e.left: where.a}, where.differing
    filled = {name: x.chunks for name, x in sides.items() if _in_pages(x)}
    if elements.count < ENOUGH or not filled or _is_grid(elements) or _is_shard(elements):
        return None
    zero = [name for name, chunks in filled.items() if all(c.zero for c in chunks)]
    side = zero[0] if zero else next(iter(filled))
    size = min(c.page for c in filled[side] if c.page)
    files = tuple(sorted({c.file for c in filled[side]}))
    fault = f"whole {unit(size)}s of {', '.join(files)}"
    if zero:
        fault += f" of {side} are zero"
    else:
        fault += f" of {side} differ" if len(filled) == 1 else " differ, of A or of B"
    n = elements.count
    text = f"{fault} ({n:,} elements)"
    return Finding(e.name, DAMAGED, text, fault, fault, n, n, files=files, where=where)


def _in_pages(found: DifferingChunks) -> bool:
    """Whether the differences of one side fill pages, and some of these end within the tensor."""
    whole = all(c.page or c.elements == c.held for c in found.chunks)
    return whole and any(c.page for c in found.chunks) and not found.more and not found.unseen


def _is_grid(elements: DifferingElements) -> bool:
    """Whether some rows by some columns differ, as a rank's do: pages do so only by accident."""
    counts = [s.end - s.first if s.count is None else s.count for s in elements.axes]
    if elements.count < NEARLY_FULL * prod(counts):
        return False
    if prod(counts[:-1]) > 1 or counts[-1] == elements.shape[-1]:
        return True
    shape, box = elements.shape, elements.box
    held = [(c, (box.offsets[c.axis], box.shape[c.axis])) for c in elements.cuts or ()]
    return any(share(shape[c.axis], c.parts, c.rank) == ends for c, ends in held)


def _is_shard(elements: DifferingElements) -> bool:
    """Whether a flat range differs that one of few ranks holds: it may begin and end with pages."""
    flat = elements.flat
    return flat is not None and 0 < flat.parts <= FEW_RANKS
