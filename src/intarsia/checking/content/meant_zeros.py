"""Zeros that are no rank's block: by chance, of heads and neurons that were pruned, of tensors that begin with zeros.

Where weights were pruned or tokens never used, zeros lie here and there, and some of them where a
rank's would.  Each is drawn like its neighbours: what so many neighbours make too unlikely is no chance.
Pruning leaves zero rows in one matrix of a layer and zero columns in the one that reads them,
in some layers or at another place in each.  A lost rank is lost in every layer alike.
A model may begin with its values, or any projection, as zeros: where query, key and value are
stored as one matrix, those are rows of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from intarsia.checking.naming import ModelPlace, StackedMatrix, place_of, tensors_in
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checking.survey.matrix_facts import MatrixFacts, Run
from intarsia.layout import Piece, clip
from intarsia.planning.manifest import Stored

_LEAST = log(1e-9)
"""What is less likely than this happens to no checkpoint by chance."""


def may_be_zero(count: int, zeros: int, others: int, places: int = 1) -> bool:
    """Whether `count` neighbours are zero by chance at one of `places`, as `zeros` of the `others` are.

    >>> may_be_zero(4, 8, 44, 48), may_be_zero(12, 1, 36, 48), may_be_zero(4, 0, 44, 48)
    (True, False, False)
    """
    if zeros <= 0:
        return False
    return count * log(zeros / others) + log(places) > _LEAST


_At = tuple[str, str, int | None, int | None]
"""A layer, or an expert of one, and the kind of state."""

_Like = tuple[str, str]
"""A kind of state, and the template of a name."""


class MeantZeros:
    """The zero columns of every layer, and the zero rows, by the logical tensors that hold them.

    And of matrices that fuse several tensors, which of those are all zero, and which like them there are.
    """

    def __init__(self, found: Sequence[ItemStats]) -> None:
        self._columns: dict[_At, list[tuple[str, int, Run]]] = {}
        self._rows: dict[_At, list[tuple[str, int, Run]]] = {}
        self._layers: dict[str, set[int | None]] = {}
        self._zero: set[str] = set()
        self._like: dict[_Like, list[str]] = {}
        for stats in found:
            for p in stats.matrices:
                self._add(stats.item.stored, p)

    def _add(self, stored: Stored, p: MatrixFacts) -> None:
        names = tensors_in(stored, p.unit)
        at = _at(place_of(names[0]))
        self._layers.setdefault(at[1], set()).add(at[2])
        for run in p.zero_columns:
            held = (p.unit.place.template, p.unit.columns, run)
            self._columns.setdefault(at, []).append(held)
        for lo, hi in p.zero_rows:
            for name, run, count in _logical_rows(stored, p.unit, lo, hi):
                self._rows.setdefault(_at(place_of(name)), []).append((name, count, run))
        if len(names) > 1:
            self._zero.update(_all_zero(stored, p))
            for name in names:
                self._like.setdefault(_like(name), []).append(name)

    def has_rows(self, stored: Stored, unit: StackedMatrix, lo: int, hi: int) -> bool:
        """Whether zero rows of a stored matrix meet zero columns of another in their layer, or are zero in every layer."""
        found = _logical_rows(stored, unit, lo, hi)
        if found and all(self._met(name, count, run) for name, run, count in found):
            return True
        names = tensors_in(stored, unit, lo, hi)
        return self._zero.issuperset(n for x in names for n in self._like.get(_like(x), [x]))

    def has_columns(self, stored: Stored, unit: StackedMatrix, lo: int, hi: int) -> bool:
        """Whether zero columns of a matrix meet zero rows of another in its layer."""
        at = _at(place_of(tensors_in(stored, unit)[0]))
        rows = self._rows.get(at, ())
        met = any(_fits(run, count, (lo, hi), unit.columns) for _, count, run in rows)
        return met and not self._in_every_layer(at, unit.place.template, (lo, hi))

    def _met(self, name: str, count: int, run: Run) -> bool:
        at = _at(place_of(name))
        return any(
            _fits(run, count, columns, length) and not self._in_every_layer(at, template, columns)
            for template, length, columns in self._columns.get(at, ())
        )

    def _in_every_layer(self, where: _At, template: str, run: Run) -> bool:
        """Whether all layers have the same zero columns, and there are several."""
        layers = self._layers.get(where[1], set())
        same = {
            at[2]
            for at, held in self._columns.items()
            if at[:2] == where[:2] and (template, run) in [(t, columns) for t, _, columns in held]
        }
        return len(layers) > 1 and same >= layers


def _at(place: ModelPlace) -> _At:
    return place.kind, place.stack, place.layer, place.expert


def _like(name: str) -> _Like:
    place = place_of(name)
    return place.kind, place.template


def _fits(rows: Run, count: int, columns: Run, length: int) -> bool:
    """Whether zero columns are those that read zero rows: as many, or a group of heads for each."""
    ratio, rest = divmod(length, count)
    if rest or not ratio:
        return False
    return columns[0] <= rows[0] * ratio and rows[1] * ratio <= columns[1]


def _logical_rows(
    stored: Stored, unit: StackedMatrix, lo: int, hi: int
) -> list[tuple[str, Run, int]]:
    """The rows of logical tensors that rows of a stored matrix are, and how many those have."""
    start, end = ((unit.first_row + row) * unit.columns for row in (lo, hi))
    counts: dict[str, int] = {}
    for p in stored.layout.pieces:
        counts[p.tensor] = max(counts.get(p.tensor, 0), _rows_of(p, unit)[1])
    parts = (part for p in stored.layout.pieces for part in clip(p, start, end))
    return [(part.tensor, _rows_of(part, unit), counts[part.tensor]) for part in parts]


def _rows_of(piece: Piece, unit: StackedMatrix) -> Run:
    last = piece.to + piece.flip().span
    return piece.to // unit.columns, last // unit.columns + 1


def _all_zero(stored: Stored, p: MatrixFacts) -> tuple[str, ...]:
    """The tensors of a matrix that its zero rows are, all of theirs and no others."""
    names = [n for lo, hi in p.zero_rows for n in tensors_in(stored, p.unit, lo, hi)]
    start = p.unit.first_row * p.unit.columns
    end = start + p.unit.rows * p.unit.columns
    held = (x for x in stored.layout.pieces if x.tensor in names)
    size = sum(part.size for x in held for part in clip(x, start, end))
    return tuple(dict.fromkeys(names)) if size == p.zero_row_count * p.unit.columns else ()
