"""The stored tensors of a dialect by name, each made when first asked for.

A table of 70,000 tensors so costs little more than its names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from intarsia.errors import FamilyError
from intarsia.family.verbs import Verb
from intarsia.frozen import frozen
from intarsia.layout import Layout, whole_layout
from intarsia.mesh import Rule, Shape
from intarsia.value import PLAIN, Value


@frozen
class Param:
    """One stored tensor of a dialect; `value` says what is stored for each logical element."""

    name: str
    layout: Layout
    rule: Rule = Rule()
    value: Value = PLAIN


_Recipe = tuple[Verb | None, tuple[str, ...], Rule, Value]


class Rows(Mapping[str, Param]):
    """The stored tensors of one dialect by name, each made when first asked for.

    `fused` are the names of all that are not just the logical tensor of the same name.
    """

    def __init__(self, logical: Mapping[str, Shape]) -> None:
        self._logical = logical
        self._recipes: dict[str, _Recipe | Rule] = {}
        self.fused: set[str] = set()
        self._made: dict[str, Param] = {}
        self._first: dict[tuple[Verb, tuple[Shape, ...]], tuple[tuple[str, ...], Layout]] = {}

    def add(self, name: str, recipe: _Recipe) -> None:
        """Add a row."""
        verb, operands, rule, value = recipe
        if verb is None and operands == (name,) and value is PLAIN:
            self.add_whole({name: rule})
            return
        if name in self._recipes:
            raise FamilyError(f"`{name}` is declared twice in one dialect")
        self._recipes[name] = recipe
        self.fused.add(name)

    def add_whole(self, rules: Mapping[str, Rule]) -> None:
        """Add rows that are the whole logical tensors of their names, with the rule of each."""
        if not self._recipes.keys().isdisjoint(rules):
            twice = next(name for name in rules if name in self._recipes)
            raise FamilyError(f"`{twice}` is declared twice in one dialect")
        self._recipes |= rules

    def __getitem__(self, name: str) -> Param:
        made = self._made.get(name)
        if made is None:
            recipe = self._recipes[name]
            if isinstance(recipe, Rule):
                made = Param(name, whole_layout(name, self._logical[name]), recipe)
            else:
                verb, operands, rule, value = recipe
                made = Param(name, self._layout(verb, operands), rule, value)
            self._made[name] = made
        return made

    def _layout(self, verb: Verb | None, operands: tuple[str, ...]) -> Layout:
        """What a verb makes of logical tensors; of others that differ by name alone it makes the same, renamed."""
        shapes = tuple([self._logical[x] for x in operands])
        if verb is None:
            return whole_layout(operands[0], shapes[0])
        if len({*operands}) < len(operands):
            return verb(*map(whole_layout, operands, shapes))
        first = self._first.get((verb, shapes))
        if first is None:
            made = verb(*map(whole_layout, operands, shapes))
            self._first[verb, shapes] = operands, made
            return made
        return first[1].rename(dict(zip(first[0], operands, strict=True)))

    def __contains__(self, name: object) -> bool:
        return name in self._recipes

    def __iter__(self) -> Iterator[str]:
        return iter(self._recipes)

    def __len__(self) -> int:
        return len(self._recipes)

    def operands(self, name: str) -> tuple[str, ...]:
        """The logical tensors that a row is made of."""
        recipe = self._recipes[name]
        return (name,) if isinstance(recipe, Rule) else recipe[1]

    def respelled(self, old: str, new: str) -> Rows:
        """The same rows, their names beginning with `new` instead of `old`."""
        out = Rows(self._logical)
        for name, recipe in self._recipes.items():
            if isinstance(recipe, Rule):
                recipe = (None, (name,), recipe, PLAIN)
            out.add(new + name.removeprefix(old) if name.startswith(old) else name, recipe)
        return out


class RowsOfDialects(Mapping[str, Param]):
    """The rows of several dialects as one; where they share a name, the first dialect wins."""

    def __init__(self, dialects: Iterable[Rows]) -> None:
        self._dialects = tuple(dialects)

    @cached_property
    def rows(self) -> dict[str, Rows]:
        """The dialect that each name is read by."""
        found: dict[str, Rows] = {}
        for rows in reversed(self._dialects):
            found |= dict.fromkeys(rows, rows)
        return found

    @cached_property
    def fused(self) -> set[str]:
        """The names of all rows that are not just the logical tensor of the same name."""
        listed = {name for rows in self._dialects for name in rows.fused}
        return {name for name in listed if name in self.rows[name].fused}

    def __getitem__(self, name: str) -> Param:
        return self.rows[name][name]

    def rule(self, name: str) -> Rule | None:
        """The rule of a row; None where no row has the name."""
        if (rows := self.rows.get(name)) is None:
            return None
        recipe = rows._recipes[name]
        return recipe if isinstance(recipe, Rule) else recipe[2]

    def whole_rule(self, name: str, shape: Shape) -> Rule | None:
        """The rule of a stored tensor that is all of the logical one of its name; None for any other."""
        if (rows := self.rows.get(name)) is None:
            return None
        recipe = rows._recipes[name]
        return recipe if isinstance(recipe, Rule) and rows._logical[name] == shape else None

    def get(self, name: str, default: Any = None) -> Param | Any:
        rows = self.rows.get(name)
        return default if rows is None else rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self.rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)
