"""Weights that two checkpoints store in different ways of quantising, so that bits say nothing."""

from __future__ import annotations

from collections.abc import Mapping

from intarsia.family import Table
from intarsia.frozen import frozen
from intarsia.planning.manifest import Manifest
from intarsia.quantised import QuantisedWeight

_MAY_BE_UNSAID = ("format", "per", "bits")
_DECIDING = ("method", "block", "group", "symmetric", "ways", *_MAY_BE_UNSAID)
"""What a scheme says that decides which numbers codes are."""


@frozen
class QuantisedDifferently:
    """The logical tensors of each side that are not compared, though both may have their names, and why."""

    a: frozenset[str] = frozenset()
    b: frozenset[str] = frozenset()
    text: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.a | self.b))


def quantised_differently(a: Manifest, b: Manifest, table: Table | None) -> QuantisedDifferently:
    """What the two sides quantise differently; weights of like codes are compared part by part."""
    if not (a.quantised or b.quantised):
        return QuantisedDifferently()
    ours, theirs = _by_weight(a, table), _by_weight(b, table)
    both = (n for n in {*ours, *theirs} if _is_of(n, ours, a) and _is_of(n, theirs, b))
    names = {n for n in both if not _alike(ours.get(n), a, theirs.get(n), b)}
    if not names:
        return QuantisedDifferently()
    said = [
        f"quantised ({m.quantised})" if m.quantised.weights else "not quantised" for m in (a, b)
    ]
    first = min(names)
    text = (
        f"A is {said[0]}, B is {said[1]}: {len(names):,} weights are not comparable,"
        f" `{first}` among them: {_said(first, ours, a)} in A; {_said(first, theirs, b)} in B"
    )
    held = [_held(m, names, ours, theirs) for m in (a, b)]
    return QuantisedDifferently(held[0], held[1], text)


def differing_schemes(a: Manifest, b: Manifest) -> str:
    """How two configurations declare codes that both have in different ways: equal ones are then other numbers."""
    if not all(m.quantised.alike and m.config and not m.config_made for m in (a, b)):
        return ""
    one, other = (m.quantised.alike[0].first.scheme for m in (a, b))
    if one is None or other is None:
        said = f"{one or 'nothing'} in A, {other or 'nothing'} in B"
        return "" if one is other else f"{said}: without it, a loader takes codes for numbers"
    both = ((name, *(_in_words(getattr(x, name)) for x in (one, other))) for name in _DECIDING)
    wrong = [
        f"{name} {x or 'none'} in A, {y or 'none'} in B"
        for name, x, y in both
        if x != y and ((x and y) or name not in _MAY_BE_UNSAID)
    ]
    return f"{'; '.join(wrong)}: equal codes are other numbers" if wrong else ""


def _in_words(said: object) -> object:
    """What a scheme says, the ways of some weights one after the other."""
    named = isinstance(said, tuple) and any(isinstance(x, str) for x in said)
    return "; ".join(map(str, said)) if isinstance(said, tuple) and named else said


def _by_weight(m: Manifest, table: Table | None) -> dict[str, QuantisedWeight]:
    """The quantised weights of a checkpoint, by the logical tensors that they stand for."""
    known = table.known if table else {}
    return {
        name: w
        for w in m.quantised.weights
        for name in (known[w.of].layout.tensors if w.of in known else (w.of,))
    }


def _alike(x: QuantisedWeight | None, a: Manifest, y: QuantisedWeight | None, b: Manifest) -> bool:
    """Whether the codes are of one kind, so that a part that one side lost, or rounded, is all that differs."""
    one = x or y
    if one is None or (x and y and x.form != y.form):
        return one is None
    words = [{p.word for p in w.others} if w else set() for w in (x, y)]
    codes = [m.stored.get(one.main.name) for m in (a, b)]
    kinds = {(s.dtype, s.shape) if s else None for s in codes}
    return len(kinds) == 1 and None not in kinds and (words[0] <= words[1] or words[1] <= words[0])


def _is_of(name: str, weights: Mapping[str, QuantisedWeight], m: Manifest) -> bool:
    return name in weights or name in m.logical


def _said(name: str, weights: Mapping[str, QuantisedWeight], m: Manifest) -> str:
    """What stands for a weight on one side, in words."""
    if name not in weights:
        return f"{m.logical[name].dtype}"
    return ", ".join(f"{p.name.rpartition('.')[2]} {p.dtype}" for p in weights[name].parts)


def _held(m: Manifest, names: set[str], *sides: Mapping[str, QuantisedWeight]) -> frozenset[str]:
    """What one checkpoint stores of the weights and of the parts that either has."""
    found = {n for n in names if n in m.logical}
    for weights in sides:
        for part in (p for n in names & weights.keys() for p in weights[n].parts):
            stored = m.stored.get(part.name)
            found.update((stored.layout.tensors or (stored.name,)) if stored else ())
    return frozenset(found)
