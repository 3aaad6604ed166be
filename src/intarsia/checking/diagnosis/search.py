"""The search for what explains a differing tensor: the plainest hypothesis that holds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import chain
from math import prod

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.finding import NOT_KNOWN, NOTHING, UNEXPLAINED, Finding
from intarsia.checking.diagnosis.hypotheses.compound import in_two_steps, resembles
from intarsia.checking.diagnosis.hypotheses.groups import RelatedTensors
from intarsia.checking.diagnosis.hypotheses.values import CONSTANT, roundings, value_hypotheses
from intarsia.checking.diagnosis.hypothesis import ENOUGH, Hypothesis, Score, Shuffle
from intarsia.checking.diagnosis.rearranged.matching import row_hypotheses
from intarsia.checking.diagnosis.rearranged.order import ANY_ORDER
from intarsia.checking.diagnosis.rearranged.orders import order_hypotheses
from intarsia.checking.diagnosis.sample import SMALL
from intarsia.checking.diagnosis.where.blocks import OF_PLACES, Tried, lost, wrong_block
from intarsia.checking.diagnosis.where.chunks import whereabouts_of
from intarsia.checking.diagnosis.where.pages import DAMAGED, damaged_pages
from intarsia.checking.diagnosis.where.whereabouts import Whereabouts
from intarsia.checking.diagnosis.where.zeros import zeros_moved
from intarsia.layout import Layout

BACKWARDS = "A from B: "
"""Begins a sentence about places that says where each element of A lies in B."""

WORTH_PROVING = 0.5
"""The share of a sample's differences that a hypothesis must explain to be tried on the whole."""


def explain_difference(e: Evidence, related: RelatedTensors, other: RelatedTensors) -> Finding:
    """What makes A's tensor B's, or B's A's, or at least where they differ.

    `other` knows the tensors related to B's.  What B lost cannot be predicted from it, but from A.
    """
    found = _search(e, related)
    if found.complete:
        return with_place(found)
    turned = _search(replace(e.flipped, chosen=e.places), other)
    better = turned.kind != UNEXPLAINED and turned.explained > found.explained
    return with_place(_turned(turned, found.tensor) if better else found)


def _search(e: Evidence, related: RelatedTensors) -> Finding:
    """The plainest hypothesis that holds; then parts, blocks, two steps, and what explains most."""
    tried: Tried = []
    likely: list[Hypothesis] = []
    for h in chain(value_hypotheses(e), order_hypotheses(e, related), row_hypotheses(e, related)):
        if isinstance(h.predict, Layout | Shuffle) and any(lost(*x) for x in tried):
            break  # zeros are found wherever there are others
        if isinstance(h.predict, Layout | Shuffle):
            score, sampled = e.rearranged(h.predict)
            if score.share < WORTH_PROVING and resembles(score, sampled):
                likely.append(h)
        else:
            score = e.on_sample(h)
        if score.share < WORTH_PROVING:
            continue
        if prod(e.shape) > SMALL:
            score = e.on_all(h)
        if score.holds and h.kind not in (ANY_ORDER, "nan"):
            return _found(e, h.as_far_as(score), score)
        tried.append((score, h))
    return _weighed(e, tried, likely)


def _weighed(e: Evidence, tried: Tried, likely: list[Hypothesis]) -> Finding:
    """What is left to say where no hypothesis explains everything."""
    if (zeros := zeros_moved(e)) is not None:
        return zeros
    moved = [(s, h) for s, h in tried if h.kind not in (*OF_PLACES, CONSTANT)]
    in_part = [(score, h) for score, h in moved if score.holds_in_part]
    if in_part:
        score, h = min(in_part, key=lambda x: (x[1].kind == ANY_ORDER, x[0].denied))
        return _found(e, h, score, "" if score.holds else " in part")
    where = whereabouts_of(e)
    found = damaged_pages(e, where) or wrong_block(e, where, tried)
    if found is not None:
        return found
    placed = [x for x in moved if isinstance(x[1].predict, Layout | Shuffle)]
    likely = [h for _, h in sorted(placed, key=lambda x: -x[0].explained)] + likely
    both = in_two_steps(e, likely) if where.elements >= ENOUGH else None
    if both is not None:
        return both
    best = max(placed, key=lambda x: x[0].explained - x[0].denied, default=None)
    if best and best[0].explained - best[0].denied >= max(ENOUGH, best[0].differing // 2):
        return _found(e, best[1], best[0], "; the rest is unexplained")
    return unexplained(e, where, NOT_KNOWN)


def rounded_as_others(e: Evidence, others: Collection[str]) -> Finding | None:
    """That a tensor was rounded to one number, which it alone does not show, where it was rounded as `others` say."""
    for h in roundings(e, to_one_number=True):
        if h.text in others and e.on_sample(h).holds and (score := e.on_all(h)).holds:
            return _found(e, h, score)
    return None


def unexplained(e: Evidence, where: Whereabouts, why: str) -> Finding:
    """A finding that says where a tensor differs, for want of a reason."""
    elements = where.differing
    known = f"{elements.count:,} of {prod(e.shape):,} elements differ, {elements}"
    text = f"{known}; {why}"
    return Finding(
        e.name, UNEXPLAINED, text, NOTHING, known=known if why == NOT_KNOWN else text,
        differing=elements.count, whole=elements.everywhere, files=where.files, where=where,
    )  # fmt: skip


def with_place(found: Finding) -> Finding:
    """A finding whose sentence ends with the place, where its kind does not give it."""
    if found.where is None or found.kind not in (UNEXPLAINED, DAMAGED, *OF_PLACES):
        return found
    known = found.known and f"{found.known}; {found.where}"
    return replace(found, text=f"{found.text}; {found.where}", known=known)


def _found(e: Evidence, h: Hypothesis, score: Score, how: str = "") -> Finding:
    order = h.predict if isinstance(h.predict, Layout | Shuffle) else None
    return Finding(
        e.name, h.kind, f"{h.text}{how}: {score}", h.text + how, h.key or h.text,
        score.explained, score.differing, whole=score.differing >= 0.8 * prod(e.shape),
        all_over=score.exact, moved=order is not None, order=None if how else order,
    )  # fmt: skip


def _turned(found: Finding, tensor: str) -> Finding:
    """A finding of B against A, as one of A against B."""
    second, start = found.second, BACKWARDS if found.moved else ""
    return replace(
        found,
        tensor=tensor,
        text=start + found.text,
        fault=start + found.fault,
        key=found.key if isinstance(found.key, str) else ("turned", found.key),
        side="A" if found.side == "B" else "B",
        second=_turned(second, tensor) if second else None,
        where=found.where.turned if found.where else None,
    )
