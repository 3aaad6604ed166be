"""Windows that move together, because they need the same bytes of the source.

Where a source holds the elements of two tensors in turn (gate and up of gpt-oss), whatever reads one
passes over the other.  Windows of both are filled at once, and every byte is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from intarsia.layout import Loop, Piece
from intarsia.mesh import Box
from intarsia.planning.proof import Proven
from intarsia.planning.proof.template import Recipe
from intarsia.planning.window import slabs_of, windows_beside

ProvenGroup = tuple[Proven, ...]
Windows = tuple[tuple[Proven, Box], ...]
_Filled = list[tuple[Proven, Piece]]
"""Copies, each with the target that it fills a stretch of."""


def partners(proofs: Iterable[Proven]) -> list[ProvenGroup]:
    """The targets, in groups that need the same bytes; nearly every target is alone."""
    listed = list(proofs)
    group_of: dict[int, list[Proven]] = {}
    for filled in copies_in_turn(listed):
        first = group_of.setdefault(id(filled[0][0]), [filled[0][0]])
        for proven, _ in filled[1:]:
            other = group_of.setdefault(id(proven), [proven])
            if other is not first:
                first += other
                for each in other:
                    group_of[id(each)] = first
    groups = {id(group): group for group in (group_of.get(id(x)) or [x] for x in listed)}
    return [tuple(group) for group in groups.values()]


def windows_together(group: ProvenGroup, limit_bytes: int) -> Iterator[Windows]:
    """The windows of targets, each time those of at most `limit_bytes` that share bytes of the source."""
    done: dict[int, list[tuple[int, int]]] = {}
    for filled in copies_in_turn(group):
        rows = max(filled[0][1].loops, key=lambda loop: loop.to)
        row_bytes = sum(rows.to * proven.target.dtype.itemsize for proven, _ in filled)
        count = limit_bytes // row_bytes
        if not count:
            continue
        for proven, piece in filled:
            done.setdefault(id(proven), []).append((piece.to, piece.to + piece.size))
        for row in range(0, rows.n, count):
            first, last = row * rows.to, min(row + count, rows.n) * rows.to
            yield tuple(
                (proven, box)
                for proven, p in filled
                for box in slabs_of(proven.target.shape, p.to + first, p.to + last)
            )
    for proven in group:
        shape, itemsize = proven.target.shape, proven.target.dtype.itemsize
        for window in windows_beside(shape, itemsize, limit_bytes, done.get(id(proven), ())):
            yield ((proven, window),)


def copies_in_turn(proofs: Iterable[Proven]) -> Iterator[_Filled]:
    """Copies whose elements lie in turn in one chunk, each filling a stretch of its target."""
    alike: dict[tuple[int, int], _Filled] = {}
    numbers: dict[tuple[Loop, ...], int] = {}
    number_of: dict[int, int] = {}  # by identity: templates keep their pieces, and few have others
    for proven in proofs:
        template, sources = proven.template, proven.sources
        if template.in_turn is None:
            template.in_turn = _in_turn(proven)
        for k, n, piece in template.in_turn:
            number = number_of.get(id(piece.loops))
            if number is None:
                number = numbers.setdefault(piece.loops, len(numbers))
                number_of[id(piece.loops)] = number
            alike.setdefault((id(sources[k].chunks[n]), number), []).append((proven, piece))
    for filled in alike.values():
        yield from _neighbours(filled, min([loop.at for loop in filled[0][1].loops]))


def _in_turn(proven: Proven) -> Recipe:
    """The copies into a target between whose elements others lie in the source, each filling a stretch."""
    template = proven.template
    if template.kind.in_turn is None:
        layout, sources, found = proven.target.layout, proven.sources, Recipe()
        if layout.size and not any(s.layout is layout or s.layout == layout for s in sources):
            found = template.recipe(layout, Box.whole(layout.shape), sources)
        stretches = tuple(copy for copy in found if _is_in_turn(copy[2]))
        template.kind.in_turn = template.start, stretches
    first, stretches = template.kind.in_turn
    by = template.start - first
    return tuple((k, n, Piece("", p.at + by, p.to, p.loops)) for k, n, p in stretches)


def _neighbours(filled: _Filled, step: int) -> Iterator[_Filled]:
    """Those that begin within one step of each other, two or more."""
    group: _Filled = []
    for each in sorted(filled, key=lambda x: x[1].at):
        if group and each[1].at - group[0][1].at >= step:
            if group[1:]:
                yield group
            group = []
        group.append(each)
    if group[1:]:
        yield group


def _is_in_turn(piece: Piece) -> bool:
    """Whether a copy takes no two neighbours, and fills consecutive elements of its destination in whatever order."""
    if not piece.loops or min(loop.at for loop in piece.loops) <= 1:
        return False
    reach = 1
    for loop in sorted(piece.loops, key=lambda loop: loop.to):
        if loop.to != reach:
            return False
        reach *= loop.n
    return True
