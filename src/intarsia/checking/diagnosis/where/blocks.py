"""A part of a tensor that is wrong as a whole: a rank's block, padding, what one file holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.finding import LOST, Finding
from intarsia.checking.diagnosis.hypothesis import ENOUGH, Bits, Hypothesis, Score
from intarsia.checking.diagnosis.where.elements import DENSE, AxisBlock, DifferingElements
from intarsia.checking.diagnosis.where.whereabouts import Whereabouts
from intarsia.checking.naming import is_of_tokens
from intarsia.checkpoint import Checkpoint
from intarsia.layout import unravel
from intarsia.mesh import Box, share

OF_PLACES = ("zero", "nan")
"""Values that show what a wrong block holds; alone they explain only a whole tensor."""


BUT_BYTES = ", but for bytes of the first element"

Tried = list[tuple[Score, Hypothesis]]


def lost(score: Score, h: Hypothesis) -> bool:
    """Whether the differing elements are lost: zeros, unless they are few, or NaN."""
    enough = h.kind == "nan" or score.explained >= ENOUGH
    return h.kind in OF_PLACES and score.explained == score.differing and enough


def wrong_block(e: Evidence, where: Whereabouts, tried: Tried) -> Finding | None:
    """A finding about a block that is wrong as a whole."""
    elements = where.differing
    content, side = "stale", ""
    for score, h in tried:
        if lost(score, h):
            content, side = h.kind, h.side
            break
    cut = "" if content != "stale" else _cut_short(e, elements, tried)
    if cut:
        content, side = "zero", cut
    if _pads(e, elements, content):
        first = elements.box.offsets[0]
        text = f"only rows {first:,} to {e.shape[0] - 1:,} differ, the last of the vocabulary"
        return _placed(e, "padding", text, ("padding",), where)
    many = elements.count >= ENOUGH
    enough = elements.dense and not elements.everywhere and many
    cuts = elements.cuts if enough and elements.is_large else None
    odd = where.dense and not (where.most and content == "stale" and not where.copied) and many
    flat = None if odd else elements.flat
    if flat and cuts:
        # A block of rows is a flat range too; one that cuts a row is no block of rows.
        whole = elements.box.size - (flat.last + 1 - flat.first) <= e.shape[-1] // 8
        cuts, flat = (cuts, None) if whole or not flat.parts else (None, flat)
    if not cuts and not odd and not flat:
        return None if content == "stale" or cut else _lost_somewhere(e, content, side, where)
    block = " and ".join(map(str, cuts or ())) or (str(flat) if flat else "")
    block = block or f"the part in {', '.join(where.files)}"
    copied = _copied_from(e, elements) if cuts and content == "stale" else None
    if copied:
        content, side = "duplicated", copied[0]
        said = f"of {side} is a copy of block {copied[1]}"
    elif content == "stale" and where.copied:
        content, side = "duplicated", where.copied
        said = f"of {side} is a copy of another part"
    elif content == "stale":
        said = "differs, the rest is equal"
    else:
        said = f"of {side} is {'NaN' if content == 'nan' else 'zero'} where it differs"
        said += BUT_BYTES if cut else ""
    key: tuple[object, ...] = tuple((c.parts, c.rank) for c in cuts or ()) or where.files
    if flat:
        key = ("flat", flat.parts, flat.rank) if flat.parts else ("flat", flat.first, flat.last)
    found = _placed(e, LOST[content], f"{block} {said}", key, where)
    return replace(found, files=where.files, of_block=said)


def _cut_short(e: Evidence, elements: DifferingElements, tried: Tried) -> str:
    """The side that is zero from within an element on, as a file that was cut short and filled up is."""
    for score, h in tried:
        if (
            h.kind == "zero"
            and score.differing - score.explained == 1
            and score.explained >= ENOUGH
        ):
            first = Box(unravel(elements.first, e.shape), (1,) * len(e.shape))
            sides = (e.b, e.a) if h.side == e.right else (e.a, e.b)
            lost, whole = (e.read(e.as_stored(side), first, side).tobytes() for side in sides)
            kept = lost.rstrip(b"\0")
            if kept and whole.startswith(kept):
                return h.side
    return ""


def _lost_somewhere(e: Evidence, content: str, side: str, where: Whereabouts) -> Finding:
    """Zeros or NaN that no rank's block holds."""
    said, other = "NaN" if content == "nan" else "zero", e.left if side == e.right else e.right
    elements = where.differing
    partly = elements.everywhere and elements.count < prod(e.shape)
    at = f" where it differs, {elements}" if partly else f": {elements}"
    found = _placed(e, content, f"{side} is {said}{at}", (content, side), where)
    has = "has a number" if content == "nan" else "is not"
    return replace(found, fault=f"{side} is {said} where {other} {has}")


def _placed(
    e: Evidence, kind: str, text: str, key: tuple[object, ...], where: Whereabouts
) -> Finding:
    n = where.elements
    return Finding(
        e.name, kind, f"{text} ({n:,} elements)", text, key, n, n,
        whole=where.differing.everywhere, all_over=n == prod(e.shape), where=where,
    )  # fmt: skip


def _pads(e: Evidence, elements: DifferingElements, content: str) -> bool:
    """Whether only the last rows of a vocabulary differ, all over: as many as padding may be, or zeros."""
    if not is_of_tokens(e.name) or not e.shape:
        return False
    n = e.shape[0]
    rows = n - elements.box.offsets[0]
    if rows == n or elements.box.shape[0] < rows:
        return False
    if elements.count < DENSE * rows * prod(e.shape[1:]):
        return False
    return may_pad(e.name, rows, n) or (content == "zero" and rows * 4 < n)


def may_pad(name: str, rows: int, of: int) -> bool:
    """Whether the last rows of a tensor may be padding: an eighth of a vocabulary, or less."""
    return is_of_tokens(name) and rows * 8 <= of


def _copied_from(e: Evidence, elements: DifferingElements) -> tuple[str, int] | None:
    """The side on which a block that differs is a copy of another block, and which one."""
    for side, name in ((e.b, e.right), (e.a, e.left)):
        for cut in elements.cuts or ():
            source = _copied(e, side, elements.box, cut)
            if source is not None:
                return name, source
    return None


def _copied(e: Evidence, side: Checkpoint, box: Box, cut: AxisBlock) -> int | None:
    """The block of the same side that a block is a copy of."""
    size = e.shape[cut.axis]
    first, count = share(size, cut.parts, cut.rank)
    whole = box.on_axis(cut.axis, first, count)
    if whole.size < ENOUGH:
        return None
    for rank in range(cut.parts):
        lo, n = share(size, cut.parts, rank)
        if rank == cut.rank or n != count:
            continue
        other = box.on_axis(cut.axis, lo, n)
        both = zip(_read(e, side, whole), _read(e, side, other), strict=True)
        if all(np.array_equal(x, y) for x, y in both):
            return rank
    return None


def _read(e: Evidence, side: Checkpoint, box: Box) -> Iterator[Bits]:
    return (e.read(e.as_stored(side), part, side) for part in e.parts_of(box))
