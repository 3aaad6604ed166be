"""The verbs of family tables: how a stored tensor is made of logical ones.

A verb is a function from layouts to a layout, of their shapes and places and never of names: what it
makes of one layer is renamed to be that of the next.  What needs a number (how many groups, which
rows) is made by a function of that number.  Each has a NumPy twin: the same words on arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from intarsia.layout import Layout, concat, stack

Verb = Callable[..., Layout]


def gated(gate: Layout, up: Layout) -> Layout:
    """The rows of the gate, then the rows of the up projection."""
    return concat([gate, up])


def interleaved(gate: Layout, up: Layout) -> Layout:
    """A row of the gate, a row of the up projection, and so on in turn."""
    both = stack([gate, up], axis=1)
    return both.reshape(2 * gate.shape[0], *gate.shape[1:])


def transposed(x: Layout) -> Layout:
    """The last two axes exchanged."""
    return x.transpose(-2, -1)


def joined(*parts: Layout) -> Layout:
    """One part after the other."""
    return concat(parts)


def by_group(groups: int) -> Verb:
    """For every query group its query heads, then its key, then its value."""

    def verb(q: Layout, k: Layout, v: Layout) -> Layout:
        parts = [x.reshape(groups, -1, *x.shape[1:]) for x in (q, k, v)]
        return concat(parts, axis=1).reshape(-1, *q.shape[1:])

    return verb


def by_group_with_gate(groups: int, width: int) -> Verb:
    """As `by_group`, for queries that the hub stores head by head with their output gate.

    Megatron's group holds all its query heads, then all its gates, then key and value.
    """

    def verb(q: Layout, k: Layout, v: Layout) -> Layout:
        tail = q.shape[1:]
        heads = q.reshape(groups, -1, 2, width, *tail)
        query, gate = (heads.narrow(2, i, i + 1).reshape(groups, -1, *tail) for i in (0, 1))
        parts = [query, gate, *(x.reshape(groups, -1, *tail) for x in (k, v))]
        return concat(parts, axis=1).reshape(-1, *tail)

    return verb


def of_every_group(groups: int, lo: int, hi: int) -> Verb:
    """Rows `[lo, hi)` of each of the groups into which a tensor's rows fall."""

    def verb(x: Layout) -> Layout:
        tail = x.shape[1:]
        return x.reshape(groups, -1, *tail).narrow(1, lo, hi).reshape(-1, *tail)

    return verb


def rows(lo: int, hi: int) -> Verb:
    """Rows `[lo, hi)`."""
    return lambda x: x.narrow(0, lo, hi)


def stacked(each: Verb | None = None, per: int = 1) -> Verb:
    """A new first axis over the experts, each made by `each` of `per` operands in turn.

    Experts whose operands differ by name alone are made as the first one, and renamed.
    """

    def verb(*parts: Layout) -> Layout:
        if each is None:
            return stack(parts)
        first, made = parts[:per], each(*parts[:per])
        out = [made]
        for i in range(per, len(parts), per):
            names = _renamed(first, parts[i : i + per])
            out.append(made.rename(names) if names else each(*parts[i : i + per]))
        return stack(out)

    return verb


def _renamed(old: Sequence[Layout], new: Sequence[Layout]) -> dict[str, str]:
    """The new name of each tensor where whole operands differ by name alone; empty where they do not."""
    names: dict[str, str] = {}
    for x, y in zip(old, new, strict=True):
        if x.shape != y.shape or not len(x.pieces) == len(y.pieces) == 1:
            return {}
        (p,), (q,) = x.pieces, y.pieces
        if (p.at, p.to, p.loops) != (q.at, q.to, q.loops) or p.tensor in names:
            return {}
        names[p.tensor] = q.tensor
    return names


def then(*verbs: Verb) -> Verb:
    """The first verb, and each further one on what the one before it made."""

    def verb(*parts: Layout) -> Layout:
        out = verbs[0](*parts)
        for each in verbs[1:]:
            out = each(out)
        return out

    return verb
