"""The search for what explains a differing tensor: the plainest hypothesis that holds."""

from __future__ import annotations

import re
from itertools import chain
from math import prod

from intarsia.checking.diagnosis.chunks import Chunks, wrong_chunks
from intarsia.checking.diagnosis.evidence import SMALL, Evidence
from intarsia.checking.diagnosis.finding import NOTHING, UNEXPLAINED, Finding
from intarsia.checking.diagnosis.groups import Kin
from intarsia.checking.diagnosis.hypothesis import ENOUGH, NEARLY_ALL, Hypothesis, Score
from intarsia.checking.diagnosis.matching import ANY_ORDER, row_hypotheses
from intarsia.checking.diagnosis.orders import order_hypotheses
from intarsia.checking.diagnosis.places import Place, copied_from, place_of
from intarsia.checking.diagnosis.values import value_hypotheses

WORTH_PROVING = 0.5
"""The share of a sample's differences that a hypothesis must explain to be tried on the whole."""

OF_PLACES = ("zero", "nan")
"""Values that tell what a wrong block holds; alone they explain only a whole tensor."""

VOCABULARY = re.compile(r"embed_tokens|lm_head|word_embeddings|output_layer|wte")

Tried = list[tuple[Score, Hypothesis]]


def explain(e: Evidence, kin: Kin) -> Finding:
    """What makes A's tensor B's, or at least where they differ."""
    tried: Tried = []
    for h in chain(value_hypotheses(e), order_hypotheses(e, kin), row_hypotheses(e, kin)):
        score = e.on_sample(h)
        if score.share < WORTH_PROVING:
            continue
        if prod(e.shape) > SMALL:
            score = e.on_all(h)
        if score.holds and h.kind != ANY_ORDER:
            return _found(e, h, score)
        tried.append((score, h))
    moved = [(s, h) for s, h in tried if h.kind not in OF_PLACES]
    part = min([x for x in moved if x[0].holds_in_part], key=_preference, default=None)
    if part:
        return _found(e, part[1], part[0], "" if part[0].holds else " in part")
    place, chunks = place_of(e), wrong_chunks(e)
    found = _block(e, kin, place, chunks, tried)
    if found is not None:
        return found
    best = max(moved, key=lambda x: x[0].explained - x[0].denied, default=None)
    if best and best[0].explained - best[0].denied >= max(ENOUGH, best[0].differing // 2):
        return _found(e, best[1], best[0])
    text = f"{place.differing / prod(e.shape):.1%} of the elements differ, {place}"
    text += "; nothing known explains them"
    return Finding(
        e.name, UNEXPLAINED, text, NOTHING,
        differing=place.differing, whole=place.everywhere, files=chunks.files,
    )  # fmt: skip


def _preference(tried: tuple[Score, Hypothesis]) -> tuple[bool, int]:
    return tried[1].kind == ANY_ORDER, tried[0].denied


def _found(e: Evidence, h: Hypothesis, score: Score, how: str = "") -> Finding:
    return Finding(
        e.name, h.kind, f"{h.text}{how}: {score}", h.text + how, h.key or h.text,
        score.explained, score.differing, whole=score.differing >= 0.8 * prod(e.shape),
    )  # fmt: skip


def _block(e: Evidence, kin: Kin, place: Place, chunks: Chunks, tried: Tried) -> Finding | None:
    """A finding about a block that is wrong as a whole."""
    content, side = "stale", ""
    for score, h in tried:
        if h.kind in OF_PLACES and score.share >= NEARLY_ALL and score.explained >= ENOUGH:
            content, side = h.kind, h.text[0]
            break
    if _pads(e, place, content):
        first = place.box.offsets[0]
        text = f"only rows {first:,} to {e.shape[0] - 1:,} differ, which pad the vocabulary"
        return _placed(e, "padding", text, ("padding",), place)
    enough = place.dense and not place.everywhere and place.differing >= ENOUGH
    cuts = place.cuts if enough else None
    if not cuts and (not chunks.dense or place.differing < ENOUGH):
        if content == "stale":
            return None
        said = "NaN" if content == "nan" else "zero"
        return _placed(e, content, f"{side} is {said}: {place}", (content,), place)
    told = " and ".join(_rank(kin, e, c.axis, str(c)) for c in cuts or ())
    told = told or f"the part in {', '.join(chunks.files)}"
    copied = copied_from(e, place) if cuts and content == "stale" else None
    if copied:
        content, side = "duplicated", copied[0]
        text = f"{told} of {side} is a copy of block {copied[1]}"
    elif content == "stale" and chunks.copied:
        content, side = "duplicated", chunks.copied
        text = f"{told} of {side} is a copy of another part"
    elif content == "stale":
        text = f"{told} differs, the rest is equal: one side's is stale"
    else:
        text = f"{told} of {side} is {'NaN' if content == 'nan' else 'zero'}"
    kind = "nan" if content == "nan" else f"rank-{content}"
    key: tuple[object, ...] = tuple((c.parts, c.rank) for c in cuts or ()) or chunks.files
    return _placed(e, kind, text, key, place, chunks.files)


def _placed(
    e: Evidence, kind: str, text: str, key: tuple[object, ...], place: Place,
    files: tuple[str, ...] = (),
) -> Finding:  # fmt: skip
    n = place.differing
    whole = place.everywhere
    return Finding(e.name, kind, f"{text} ({n:,} elements)", text, key, n, n, whole, files)


def _rank(kin: Kin, e: Evidence, axis: int, block: str) -> str:
    return f"{block} (which tp cuts)" if kin.tp_axis(e.name) == axis else block


def _pads(e: Evidence, place: Place, content: str) -> bool:
    """Whether only the last rows of a vocabulary differ: less than an eighth, or zeros."""
    if not VOCABULARY.search(e.name) or len(e.shape) < 1:
        return False
    first, n = place.box.offsets[0], e.shape[0]
    if first == 0 or first + place.box.shape[0] != n:
        return False
    return (n - first) * 8 <= n or (content == "zero" and (n - first) * 4 < n)
