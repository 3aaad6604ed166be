"""Tensors that are zero in every layer, and lie with others in one stored matrix.

A model may begin with its values, or any projection, as zeros.  Where query, key and value are
stored as one matrix, those zeros are rows of it, and no rank's block.
"""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.checking.naming import StackedMatrix, place_of, tensors_in
from intarsia.checking.survey.item_stats import ItemStats
from intarsia.checking.survey.matrix_facts import MatrixFacts
from intarsia.layout import clip
from intarsia.planning.manifest import Stored

_Like = tuple[str, str]
"""A kind of state, and the template of a name."""


class ZeroParts:
    """Which logical tensors of fused matrices are all zero, and which of them in every layer."""

    def __init__(self, found: Sequence[ItemStats]) -> None:
        self._zero: set[str] = set()
        self._like: dict[_Like, list[str]] = {}
        for stats in found:
            for p in stats.matrices:
                names = tensors_in(stats.item.stored, p.unit)
                if len(names) > 1:
                    self._zero.update(_all_zero(stats.item.stored, p))
                    for name in names:
                        self._like.setdefault(_like(name), []).append(name)

    def has_rows(self, stored: Stored, unit: StackedMatrix, lo: int, hi: int) -> bool:
        """Whether rows of a stored matrix belong to tensors that are zero in every layer."""
        names = tensors_in(stored, unit, lo, hi)
        like = [n for name in names for n in self._like.get(_like(name), [name])]
        return self._zero.issuperset(like)


def _like(name: str) -> _Like:
    place = place_of(name)
    return place.kind, place.template


def _all_zero(stored: Stored, p: MatrixFacts) -> tuple[str, ...]:
    """The tensors of a matrix that its zero rows are, all of theirs and no others."""
    names = [n for lo, hi in p.zero_rows for n in tensors_in(stored, p.unit, lo, hi)]
    start = p.unit.first_row * p.unit.columns
    end = start + p.unit.rows * p.unit.columns
    held = (x for x in stored.layout.pieces if x.tensor in names)
    size = sum(part.size for x in held for part in clip(x, start, end))
    return tuple(dict.fromkeys(names)) if size == p.zero_row_count * p.unit.columns else ()
