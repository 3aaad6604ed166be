"""Why two checkpoints differ: each differing tensor explained, and the faults behind them all.

A hypothesis predicts B from A: a layout says which element of A lies where in B, or a value
says what became of each.  A sample chooses among hypotheses; every element decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.finding import NOTHING, UNEXPLAINED, Finding
from intarsia.checking.diagnosis.groups import Kin
from intarsia.checking.diagnosis.moved import kind_of, told
from intarsia.checking.diagnosis.moves import find_moves, pattern
from intarsia.checking.diagnosis.search import explain
from intarsia.checking.diagnosis.shapes import find_reshaped
from intarsia.checking.diagnosis.summary import missing, summarise
from intarsia.checking.fault import Fault
from intarsia.checking.pairs import Matched, Pair
from intarsia.checkpoint import Checkpoint
from intarsia.family import table_for
from intarsia.run.budget import Budget

PATIENCE = 2
"""Tensors of one pattern that may stay unexplained before the others are left unsearched."""


@dataclass(frozen=True, slots=True)
class Unequal:
    """A pair that differs: in how many elements, first where, and by how much.

    `text` says how their element types differ; a `kind` with it says that this is all.
    """

    pair: Pair
    elements: int
    first: tuple[int, ...]
    max_abs: float
    kind: str = ""
    text: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """What is known of each pair that differs, in their order, and of them all."""

    findings: tuple[Finding, ...]
    faults: tuple[Fault, ...]


def diagnose(
    a: Checkpoint,
    b: Checkpoint,
    matched: Matched,
    unequal: Sequence[Unequal],
    budget: Budget,
    progress: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Explain every pair that differs, and sum the explanations up."""
    found: dict[Pair, Finding] = {}
    open_: dict[Pair, Evidence] = {}
    for u in unequal:
        if u.pair.a.shape != u.pair.b.shape:
            found[u.pair] = find_reshaped(a, b, u.pair, budget)
        elif u.kind:
            n = u.elements
            found[u.pair] = Finding(u.pair.a.name, u.kind, u.text, u.text, u.text, n, n)
        else:
            open_[u.pair] = Evidence(a, b, u.pair, u.first, budget)
    for pair, move in find_moves(list(open_.values())).items():
        found[pair] = Finding(
            pair.a.name, kind_of(move), told(move),
            explained=move.score.explained, differing=move.score.differing, move=move,
        )  # fmt: skip
    kin = Kin(a.manifest.logical, table_for(a.config) or table_for(b.config))
    failed: Counter[str] = Counter()
    sizes = [u.pair.a.size * u.pair.a.dtype.itemsize for u in unequal]
    for k, u in enumerate(unequal):
        if progress is not None:
            progress(sum(sizes[: k + 1]), sum(sizes))
        if u.pair in found:
            continue
        name = pattern(u.pair.a.name)
        if failed[name] >= PATIENCE:
            found[u.pair] = _unsearched(u)
            continue
        found[u.pair] = explain(open_[u.pair], kin)
        failed[name] += found[u.pair].kind == UNEXPLAINED and not found[u.pair].files
    findings = tuple(found[u.pair] for u in unequal)
    faults = (
        *missing("B", matched.only_in_a, b.manifest.logical),
        *missing("A", matched.only_in_b, a.manifest.logical),
        *summarise(findings, a.manifest, b.manifest),
    )
    return Diagnosis(findings, faults)


def _unsearched(u: Unequal) -> Finding:
    share = u.elements / u.pair.a.size
    text = f"{share:.1%} of the elements differ"
    text += f"; not searched, as {PATIENCE} tensors of this name stayed unexplained"
    return Finding(
        u.pair.a.name, UNEXPLAINED, text, NOTHING, differing=u.elements, whole=share >= 0.8
    )


__all__ = ["Diagnosis", "Finding", "Unequal", "diagnose"]
