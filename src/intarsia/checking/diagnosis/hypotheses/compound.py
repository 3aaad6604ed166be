"""Two faults in one tensor: elements in other places, and changed or partly wrong there as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.finding import LOST, Finding
from intarsia.checking.diagnosis.hypotheses.values import changed_after, value_hypotheses
from intarsia.checking.diagnosis.hypothesis import ENOUGH, BitsOfPair, Hypothesis, Score
from intarsia.checking.diagnosis.where.blocks import OF_PLACES, Tried, wrong_block
from intarsia.checking.diagnosis.where.elements import differing_elements
from intarsia.checking.diagnosis.where.whereabouts import Whereabouts
from intarsia.layout import Layout

ALIKE = 0.9
"""The correlation from which on moved elements are taken for B's, changed one by one."""

SOME = 0.3
"""The share of a sample that a first step must explain where a second one is a wrong block."""

MOST_TRIED = 6
IN_PLACE = ", once in place"
"""What is said of a tensor's second fault holds when the first one is undone."""


def resembles(score: Score, moved: Sequence[BitsOfPair]) -> bool:
    """Whether a rearrangement that does not explain a sample may be half of what does."""
    if score.share >= SOME:
        return True
    if not all(w.a.floating and w.b.floating for w in moved):
        return False
    u = np.concatenate([w.u[w.unequal].reshape(-1) for w in moved])
    v = np.concatenate([w.v[w.unequal].reshape(-1) for w in moved])
    fine = np.isfinite(u) & np.isfinite(v)
    u, v = u[fine], v[fine]
    with np.errstate(all="ignore"):  # numbers of damaged bits overflow
        if len(u) < ENOUGH or not u.std() or not v.std():
            return False
        return abs(float(np.corrcoef(u, v)[0, 1])) >= ALIKE


def in_two_steps(e: Evidence, likely: Sequence[Hypothesis]) -> Finding | None:
    """The first rearrangement with a second step that together explain a tensor."""
    for h in likely[:MOST_TRIED]:
        # What a first step leaves empty would pass for zeros.
        if isinstance(h.predict, Layout) and h.predict.mapped == h.predict.size:
            found = _then_changed(e, h) or _then_wrong(e, h)
            if found is not None:
                return found
    return None


def _then_changed(e: Evidence, h: Hypothesis) -> Finding | None:
    """Rearranged as `h` says, and every element changed: rounded, scaled."""
    changed = changed_after(e, h)
    if changed is None:
        return None
    score, value = changed
    text = f"{h.text}, and {value.text}: {score}"
    second = also_changed(e.name, value, score)
    return _first(e, h, text, score.explained, score.differing, second)


def also_changed(tensor: str, value: Hypothesis, score: Score) -> Finding:
    """A change of value as the second fault of a tensor."""
    text = f"{value.text}{IN_PLACE}"
    key = value.key or value.text
    return Finding(tensor, value.kind, text, text, key, score.explained, score.differing)


def _then_wrong(e: Evidence, h: Hypothesis) -> Finding | None:
    """Rearranged as `h` says, and one block of it wrong."""
    assert isinstance(h.predict, Layout)
    moved, score = e.moved(h.predict), e.on_all(h)
    if score.share < SOME or h.kind == "shifted":
        return None  # what a shift lost or made is no rank's block
    values = [v for v in value_hypotheses(moved) if v.kind in OF_PLACES]
    tried: Tried = [(moved.on_all(v), v) for v in values]
    second = wrong_block(moved, Whereabouts(differing_elements(moved)), tried)
    if second is None or second.kind not in LOST.values() or second.kind == "nan":
        return None
    text = f"{h.text}: {score}; and {second.text}"
    explained = min(score.explained + second.explained, score.differing)
    second = replace(
        second, text=f"{second.text}{IN_PLACE}", fault=f"{second.fault}{IN_PLACE}", where=None,
        key=("besides", second.key), explained=explained, differing=score.differing,
    )  # fmt: skip
    return _first(e, h, text, explained, score.differing, second)


def _first(
    e: Evidence, h: Hypothesis, text: str, explained: int, differing: int, second: Finding
) -> Finding:
    whole = differing >= 0.8 * prod(e.shape)
    explained = min(explained, differing)
    return Finding(
        e.name, h.kind, text, h.text, h.key or h.text, explained, differing, whole,
        moved=True, second=second, order=h.predict if isinstance(h.predict, Layout) else None,
    )  # fmt: skip
