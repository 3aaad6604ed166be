"""Why two checkpoints differ: each differing tensor explained, and the faults behind them all.

A hypothesis predicts B from A: a layout says which element of A lies where in B, or a value
says what became of each.  A sample chooses among hypotheses; every element decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from intarsia.checking.diagnosis.evidence import Evidence
from intarsia.checking.diagnosis.finding import UNEXPLAINED, Finding
from intarsia.checking.diagnosis.hypotheses.compound import also_changed
from intarsia.checking.diagnosis.hypotheses.faults_of_moves import MOVED, text_of_move
from intarsia.checking.diagnosis.hypotheses.groups import RelatedTensors
from intarsia.checking.diagnosis.hypotheses.moves import find_moves, is_table
from intarsia.checking.diagnosis.hypotheses.values import ROUNDED
from intarsia.checking.diagnosis.quantised_parts import find_of_part
from intarsia.checking.diagnosis.rearranged.per_row import ordered_as_matrices
from intarsia.checking.diagnosis.relabelled import named_otherwise, relabelled
from intarsia.checking.diagnosis.search import (
    explain_difference,
    rounded_as_others,
    unexplained,
    with_place,
)
from intarsia.checking.diagnosis.summary import missing, not_comparable, summarise
from intarsia.checking.diagnosis.where.chunks import whereabouts_of
from intarsia.checking.diagnosis.where.pages import damaged_pages
from intarsia.checking.diagnosis.without_search import (
    find_reshaped,
    find_steps,
    find_untied,
)
from intarsia.checking.fault import Fault
from intarsia.checking.naming import pattern
from intarsia.checking.pair.differing import Unequal
from intarsia.checking.pair.pairs import Matched, Pair
from intarsia.checkpoint import Checkpoint
from intarsia.family import table_for
from intarsia.frozen import frozen
from intarsia.run.budget import Budget
from intarsia.run.progress import Progress, counting
from intarsia.run.sharing import share_out

PATIENCE = 2
"""Tensors of one pattern that may stay unexplained before the others are left unsearched."""


@frozen
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
    progress: Progress | None = None,
) -> Diagnosis:
    """Explain every pair that differs, and sum the explanations up."""
    found: dict[Pair, Finding] = {}
    open_: dict[Pair, Evidence] = {}
    named = named_otherwise(unequal)
    # A window is held in A's order, in that of a hypothesis, and as numbers.
    thrifty = replace(budget, memory_bytes=budget.memory_bytes // 2)
    for u in unequal:
        e = Evidence(a, b, u.pair, u.first, thrifty)
        if u.pair.a.shape != u.pair.b.shape:
            found[u.pair] = find_reshaped(a, b, u.pair, budget)
        elif u.pair in named:
            pass
        elif u.kind:
            n = u.elements
            found[u.pair] = Finding(u.pair.a.name, u.kind, u.text, u.text, u.text, n, n)
        elif (untied := find_untied(a, b, u.pair, budget)) is not None:
            found[u.pair] = untied
        elif (counted := find_steps(e)) is not None:
            found[u.pair] = counted
        else:
            open_[u.pair] = e
    found.update(relabelled(a, b, named.values(), budget))
    for pair, move in find_moves(list(open_.values())).items():
        change = move.change
        found[pair] = Finding(
            pair.a.name, MOVED, text_of_move(move),
            explained=move.score.explained, differing=move.score.differing, move=move,
            second=also_changed(pair.a.name, change, move.score) if change else None,
        )  # fmt: skip
    table = table_for(a.config) or table_for(b.config)
    related, other = (
        RelatedTensors(x.manifest.logical, table, a.config or b.config) for x in (a, b)
    )
    left = [u for u in unequal if u.pair not in found]
    found |= _searched(left, open_, related, other, budget, progress)
    rounded = {f.fault for f in found.values() if f.kind == ROUNDED}
    for u in left:
        if rounded and found[u.pair].kind != ROUNDED:
            found[u.pair] = rounded_as_others(open_[u.pair], rounded) or found[u.pair]
    found.update([*ordered_as_matrices([open_[u.pair] for u in left], found)])
    findings = tuple(found[u.pair] for u in unequal)
    faults = (
        *missing("B", matched.only_in_a, b.manifest.logical, table),
        *missing("A", matched.only_in_b, a.manifest.logical, table),
        *not_comparable(matched.apart),
        *summarise(findings, a.manifest, b.manifest),
    )
    kinds = {name: fault.kind for fault in faults for name in fault.tensors}
    findings = tuple(
        replace(f, kind=kinds.get(f.tensor, f.kind)) if f.move else f for f in findings
    )
    return Diagnosis(findings, faults)


def _searched(
    unequal: Sequence[Unequal],
    open_: Mapping[Pair, Evidence],
    related: RelatedTensors,
    other: RelatedTensors,
    budget: Budget,
    progress: Progress | None,
) -> dict[Pair, Finding]:
    """Each tensor explained, on the budget's threads: some of every name, then twice as many."""
    found: dict[Pair, Finding] = {}
    queues: dict[str, list[Unequal]] = {}
    failed: Counter[str] = Counter()
    for u in unequal:
        queues.setdefault(pattern(u.pair.a.name), []).append(u)
    count = PATIENCE
    advance = counting(progress, sum(u.pair.a.nbytes for u in unequal))

    def look(u: Unequal, thoroughly: bool = True) -> None:
        e = open_[u.pair]
        near = related, other
        if is_table(e.a.manifest, e.name):
            near = (
                RelatedTensors({e.name: e.pair.a}, None),
                RelatedTensors({e.pair.b.name: e.pair.b}, None),
            )
        with np.errstate(all="ignore"):  # numbers of damaged bits overflow
            found[u.pair] = find_of_part(e) or (
                explain_difference(e, *near) if thoroughly else _unsearched(e)
            )
        advance(u.pair.a.nbytes)

    while any(queues.values()):
        batch = [u for queue in queues.values() for u in queue[:count]]
        share_out(batch, budget.workers, look)
        failed.update(pattern(u.pair.a.name) for u in batch if found[u.pair].kind == UNEXPLAINED)
        queues = {name: queue[count:] for name, queue in queues.items()}
        left = [n for n in queues if failed[n] >= PATIENCE]
        skipped = [u for name in left for u in queues.pop(name)]
        share_out(skipped, budget.workers, partial(look, thoroughly=False))
        count *= 2
    return found


def _unsearched(e: Evidence) -> Finding:
    where = whereabouts_of(e)
    why = f"not searched, because {PATIENCE} tensors of this name stayed unexplained"
    return with_place(damaged_pages(e, where) or unexplained(e, where, why))


__all__ = ["Diagnosis", "Finding", "diagnose"]
