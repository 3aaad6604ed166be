"""A part of a tensor that is wrong as a whole: a rank's block, padding, what one file holds."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.finding import LOST, Finding
from intarsia.checking.diagnosis.hypotheses.groups import RelatedTensors
from intarsia.checking.diagnosis.hypotheses.hypothesis import ENOUGH, Hypothesis, Score
from intarsia.checking.diagnosis.where.chunks import Chunks
from intarsia.checking.diagnosis.where.places import Place, copied_from

OF_PLACES = ("zero", "nan")
"""Values that show what a wrong block holds; alone they explain only a whole tensor."""

VOCABULARY = re.compile(r"embed_tokens|lm_head|word_embeddings|output_layer|wte")

Tried = list[tuple[Score, Hypothesis]]


def lost(score: Score, h: Hypothesis) -> bool:
    """Whether the differing elements are lost: zeros, unless they are few, or NaN."""
    enough = h.kind == "nan" or score.explained >= ENOUGH
    return h.kind in OF_PLACES and score.explained == score.differing and enough


def wrong_block(
    e: Evidence, kin: RelatedTensors, place: Place, chunks: Chunks, tried: Tried
) -> Finding | None:
    """A finding about a block that is wrong as a whole."""
    content, side = "stale", ""
    for score, h in tried:
        if lost(score, h):
            content, side = h.kind, h.side
            break
    if _pads(e, place, content):
        first = place.box.offsets[0]
        text = f"only rows {first:,} to {e.shape[0] - 1:,} differ, which pad the vocabulary"
        return _placed(e, "padding", text, ("padding",), place)
    enough = place.dense and not place.everywhere and place.differing >= ENOUGH
    cuts = place.cuts if enough and place.is_large else None
    odd = chunks.dense and not (chunks.most and content == "stale" and not chunks.copied)
    odd &= place.differing >= ENOUGH
    flat = None if odd else place.flat
    if flat and cuts:
        # A block of rows is a flat range too; one that cuts a row is no block of rows.
        whole = place.box.size - (flat.last + 1 - flat.first) <= e.shape[-1] // 8
        cuts, flat = (cuts, None) if whole or not flat.parts else (None, flat)
    if not cuts and not odd and not flat:
        return None if content == "stale" else _lost_somewhere(e, content, side, place)
    told = " and ".join(map(str, cuts or ())) or (str(flat) if flat else "")
    told = told or f"the part in {', '.join(chunks.files)}"
    copied = copied_from(e, place) if cuts and content == "stale" else None
    if copied:
        content, side = "duplicated", copied[0]
        said = f"of {side} is a copy of block {copied[1]}"
    elif content == "stale" and chunks.copied:
        content, side = "duplicated", chunks.copied
        said = f"of {side} is a copy of another part"
    elif content == "stale":
        said = "differs, the rest is equal"
    else:
        said = f"of {side} is {'NaN' if content == 'nan' else 'zero'} where it differs"
    kind = LOST[content]
    key: tuple[object, ...] = tuple((c.parts, c.rank) for c in cuts or ()) or chunks.files
    if flat:
        key = ("flat", flat.parts, flat.rank) if flat.parts else ("flat", flat.first, flat.last)
    found = _placed(e, kind, f"{told} {said}", key, place, chunks.files)
    return replace(found, place=place, of_block=said)


def _lost_somewhere(e: Evidence, content: str, side: str, place: Place) -> Finding:
    """Zeros or NaN that no rank's block holds."""
    said, other = "NaN" if content == "nan" else "zero", e.left if side == e.right else e.right
    partly = place.everywhere and place.differing < prod(e.shape)
    at = f" where it differs, {place}" if partly else f": {place}"
    found = _placed(e, content, f"{side} is {said}{at}", (content, side), place)
    has = "has a number" if content == "nan" else "is not"
    return replace(found, fault=f"{side} is {said} where {other} {has}")


def _placed(
    e: Evidence, kind: str, text: str, key: tuple[object, ...], place: Place,
    files: tuple[str, ...] = (),
) -> Finding:  # fmt: skip
    n = place.differing
    return Finding(
        e.name, kind, f"{text} ({n:,} elements)", text, key, n, n,
        whole=place.everywhere, all_over=n == prod(e.shape), files=files,
    )  # fmt: skip


def _pads(e: Evidence, place: Place, content: str) -> bool:
    """Whether only the last rows of a vocabulary differ: less than an eighth, or zeros."""
    if not VOCABULARY.search(e.name) or len(e.shape) < 1:
        return False
    first, n = place.box.offsets[0], e.shape[0]
    if first == 0 or first + place.box.shape[0] != n:
        return False
    return (n - first) * 8 <= n or (content == "zero" and (n - first) * 4 < n)
