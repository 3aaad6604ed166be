"""The map of a model: a row for each parameter, a column for each layer, experts in one cell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from intarsia.checking.naming import place_of
from intarsia.errors import visible
from intarsia.state.names import of_kind


@dataclass(frozen=True, slots=True)
class MapRow:
    """A parameter of every layer: its name, cut where the numbers of layer and expert stand.

    `kind` is the part of the optimizer's state that it is, empty for a weight.
    """

    kind: str
    words: tuple[str, ...]
    layered: bool
    expert: bool

    def name(self, layer: int | None, expert: int | None) -> str:
        """The tensor at a place of this row.

        >>> MapRow("exp_avg", ("layers.", ".up.weight"), True, False).name(3, None)
        'optimizer.exp_avg.layers.3.up.weight'
        """
        numbers = [n for n, has in ((layer, self.layered), (expert, self.expert)) if has]
        numbered = (f"{n}{word}" for n, word in zip(numbers, self.words[1:], strict=True))
        name = self.words[0] + "".join(numbered)
        return of_kind(self.kind)(name) if self.kind else name

    def as_json(self) -> list[object]:
        words = [visible(word) for word in self.words]
        return [visible(self.kind), words, int(self.layered), int(self.expert)]


@dataclass(frozen=True, slots=True)
class Cell:
    """Where one tensor stands: the number of its row, its layer, its expert."""

    row: int
    layer: int | None = None
    expert: int | None = None


def map_of(names: Iterable[str]) -> tuple[list[MapRow], list[Cell]]:
    """The rows of a map in the order of the names, and the cell of each name."""
    numbers: dict[MapRow, int] = {}
    cells = []
    for row, layer, expert in map(_taken_apart, names):
        cells.append(Cell(numbers.setdefault(row, len(numbers)), layer, expert))
    return list(numbers), cells


def _taken_apart(name: str) -> tuple[MapRow, int | None, int | None]:
    place = place_of(name)
    words = tuple(place.template.split("*"))
    row = MapRow(place.kind, words, place.layer is not None, place.expert is not None)
    holes = row.layered + row.expert
    if len(words) == holes + 1 and row.name(place.layer, place.expert) == name:
        return row, place.layer, place.expert
    return MapRow("", (name,), False, False), None, None  # a name that its parts do not give back
