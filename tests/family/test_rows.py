"""The rows of a dialect: each made when asked for, and once for all layers that differ by name alone."""

from __future__ import annotations

import pytest

from intarsia.family.rows import Rows
from intarsia.family.verbs import Verb, by_group, gated, joined, stacked, transposed
from intarsia.layout import Layout
from intarsia.mesh import Rule
from intarsia.value import PLAIN

SHAPES = {f"{layer}.{name}": (4, 6) for layer in range(3) for name in "abc"} | {"long": (8, 6)}


def rows(verb: Verb, *operands: tuple[str, ...]) -> list[Layout]:
    """What a dialect has under the names 0, 1, …, all made by one verb."""
    held = Rows(SHAPES)
    for k, names in enumerate(operands):
        held.add(f"{k}", (verb, names, Rule(), PLAIN))
    return [held[f"{k}"].layout for k in range(len(operands))]


OPERANDS = {
    "other layers": [(f"{layer}.a", f"{layer}.b", f"{layer}.c") for layer in range(3)],
    "names in another order": [("0.a", "0.b", "0.c"), ("0.c", "0.a", "0.b")],
    "another shape": [("0.a", "0.b", "0.c"), ("long", "1.b", "1.c")],
    "one name twice": [("0.a", "0.b", "0.c"), ("1.a", "1.a", "1.c"), ("2.a", "2.b", "2.b")],
    "first one name twice": [("1.a", "1.a", "1.a"), ("0.a", "0.b", "0.c")],
}
VERBS = {
    "joined": joined,
    "joined, the last first": lambda *parts: joined(*reversed(parts)),
    "the first two": lambda a, b, c: gated(a, b),
    "by group": by_group(2),
    "turned": lambda *parts: transposed(joined(*parts)),
}


@pytest.mark.parametrize("operands", OPERANDS.values(), ids=OPERANDS)
@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_row_is_what_its_verb_makes_of_its_own_operands(verb: Verb, operands) -> None:
    expected = [verb(*(Layout.of(name, SHAPES[name]) for name in names)) for names in operands]
    assert rows(verb, *operands) == expected


def test_a_verb_is_applied_once_to_layers_that_differ_by_name_alone() -> None:
    calls: list[int] = []

    def counted(*parts: Layout) -> Layout:
        calls.append(len(parts))
        return stacked(gated, 2)(*parts)

    rows(counted, ("0.a", "0.b"), ("1.a", "1.b"), ("2.b", "2.c"), ("0.a", "0.b", "1.a", "1.b"))
    assert calls == [2, 4]
