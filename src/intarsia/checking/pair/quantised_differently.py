"""Weights that two checkpoints store in different ways of quantising, so that bits say nothing."""

from __future__ import annotations

from collections.abc import Mapping

from intarsia.family import Table
from intarsia.frozen import frozen
from intarsia.planning.manifest import Manifest
from intarsia.quantised import QuantisedWeight

_Form = tuple[str, ...]


@frozen
class QuantisedDifferently:
    """The logical tensors of each side that have no partner to be compared with, and a word on them."""

    a: frozenset[str] = frozenset()
    b: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def quantised_differently(a: Manifest, b: Manifest, table: Table | None) -> QuantisedDifferently:
    """What the two sides quantise differently."""
    if not (a.quantised or b.quantised):
        return QuantisedDifferently()
    ours, theirs = _by_weight(a, table), _by_weight(b, table)
    names = {n for n in {*ours, *theirs} if _form(ours.get(n)) != _form(theirs.get(n))}
    if not names:
        return QuantisedDifferently()
    sides = (_held(a, ours, names), _held(b, theirs, names))
    said = [
        f"quantised ({m.quantised})" if m.quantised.weights else "not quantised" for m in (a, b)
    ]
    note = (
        f"A is {said[0]}, B is {said[1]}: {len(names):,} weights are not comparable;"
        " dequantise both to compare their numbers"
    )
    return QuantisedDifferently(*sides, (note,))


def _by_weight(m: Manifest, table: Table | None) -> dict[str, QuantisedWeight]:
    """The quantised weights of a checkpoint, by the logical tensors that they stand for."""
    known = table.known if table else {}
    return {
        name: w
        for w in m.quantised.weights
        for name in (known[w.of].layout.tensors if w.of in known else (w.of,))
    }


def _form(w: QuantisedWeight | None) -> _Form:
    if w is None:
        return ()
    return (w.form, *sorted(f"{part.word} {part.dtype}" for part in w.parts))


def _held(m: Manifest, weights: Mapping[str, QuantisedWeight], names: set[str]) -> frozenset[str]:
    found = {n for n in names if n in m.logical}
    for name in names & weights.keys():
        for part in weights[name].parts:
            stored = m.stored.get(part.name)
            found.update((stored.layout.tensors or (stored.name,)) if stored else ())
    return frozenset(found)
