"""The proof: every place of a destination is written, and none of them twice.

Nothing is sampled and no element is visited.  `tally` counts the indices that a set of pieces
holds, once and more than once: runs by one sweep over their ends, strided pieces by cutting them
into rows of the largest stride and tallying what is inside the rows, so that a thousand
interleaved columns cost one sweep.  Where a count comes out short, bisection names the elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from math import inf, prod

from intarsia.errors import LayoutError
from intarsia.frozen import frozen
from intarsia.layout.layout import Layout, by_tensor, copies_to
from intarsia.layout.piece import Loop, Piece, align, clip, meet, whole_rows

SHOWN = 8
"""How many ranges a report of missing elements names."""


@frozen
class Cover:
    """What a set of sources does to one destination."""

    wanted: int
    """Places of the destination that are no padding."""
    covered: int
    """Of these, the places that some source writes."""
    doubled: int
    """Of these, the places that are written more than once."""
    missing: tuple[tuple[str, int, int], ...] = ()
    """The first flat ranges `(tensor, lo, hi)` that the destination wants and no source holds."""
    first_doubled: tuple[str, int] | None = None
    """The first element `(tensor, index)` that the sources hold more than once."""

    @property
    def exact(self) -> bool:
        """Whether every wanted place is written exactly once."""
        return self.covered == self.wanted and self.doubled == 0

    @property
    def first_missing(self) -> tuple[str, int] | None:
        """The first element `(tensor, index)` that the destination wants and no source holds."""
        return self.missing[0][:2] if self.missing else None


def cover(dst: Layout, sources: Iterable[Layout]) -> Cover:
    """Count the places of `dst` that `sources` write, and name what is missing or doubled.

    >>> w = Layout.of("w", (4, 3))
    >>> cover(w, [w.narrow(0, 0, 2), w.narrow(0, 3, 4)])
    Cover(wanted=12, covered=9, doubled=0, missing=(('w', 6, 9),), first_doubled=None)
    """
    sources, held = list(sources), by_tensor(dst)
    covered, doubled = tally([c.flip() for src in sources for c in copies_to(src, held)])
    wanted = dst.mapped
    missing = tuple(islice(_missing(dst, sources), SHOWN)) if covered < wanted else ()
    twice = _first_doubled(dst, sources) if doubled else None
    return Cover(wanted, covered, doubled, missing, twice)


def tally(pieces: Sequence[Piece]) -> tuple[int, int]:
    """How many `at` indices `pieces` name at all, and how many of them more than once."""
    runs = sorted([(p.at, p.run) for p in pieces])
    if all(n and at + n <= after for (at, n), (after, _) in pairwise([*runs, (inf, 0)])):
        return sum([n for _, n in runs]), 0
    return _tally([_weighed(p) for p in pieces])


def unravel(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """NumPy's `np.unravel_index(index, shape)`.

    >>> unravel(7, (2, 5))
    (1, 2)
    """
    if not 0 <= index < prod(shape):
        raise LayoutError(f"element {index} of {tuple(shape)}, which has {prod(shape):,} elements")
    out: list[int] = []
    for n in reversed(shape):
        index, digit = divmod(index, n)
        out.append(digit)
    return tuple(reversed(out))


# A piece with its weight: 1, or 2 where zero-stride loops name each index more than once.
_Weighed = tuple[Piece, int]


def _weighed(p: Piece) -> _Weighed:
    moving = tuple([loop for loop in p.loops if loop.at])
    if len(moving) == len(p.loops):
        return p, 1
    repeats = prod([loop.n for loop in p.loops if not loop.at])
    return Piece(p.tensor, p.at, p.to, moving), min(repeats, 2)


def _tally(items: list[_Weighed]) -> tuple[int, int]:
    covered = doubled = 0
    for group in _touching(items):
        if len(group) == 1 and _nested(group[0][0]):
            size, weight = group[0][0].size, group[0][1]
            covered, doubled = covered + size, doubled + (size if weight > 1 else 0)
            continue
        once, twice = _sweep(group) if _are_runs(group) else _tally_rows(group)
        covered, doubled = covered + once, doubled + twice
    return covered, doubled


def _touching(items: list[_Weighed]) -> Iterator[list[_Weighed]]:
    """Groups of pieces whose spans overlap; pieces of two groups share no index."""
    if len(items) < 2:
        if items:
            yield items
        return
    items = sorted(items, key=lambda item: item[0].at)
    group, end = [items[0]], items[0][0].at + items[0][0].span
    for item in items[1:]:
        p = item[0]
        if p.at > end:
            yield group
            group = []
        group.append(item)
        end = max(end, p.at + p.span)
    yield group


def _nested(p: Piece) -> bool:
    """Whether each loop steps over all that smaller loops reach, so that no index comes twice."""
    reach = 0
    for loop in sorted(p.loops, key=lambda loop: loop.at):
        if loop.at <= reach:
            return False
        reach += (loop.n - 1) * loop.at
    return True


def _are_runs(group: list[_Weighed]) -> bool:
    return all(not p.loops or (len(p.loops) == 1 and p.loops[0].at == 1) for p, _ in group)


def _sweep(group: list[_Weighed]) -> tuple[int, int]:
    """`tally` of runs: walk over their ends and keep the depth."""
    ends: list[tuple[int, int]] = []
    for p, weight in group:
        ends += [(p.at, weight), (p.at + p.size, -weight)]
    ends.sort()
    covered = doubled = depth = 0
    for (lo, change), (hi, _) in pairwise(ends):
        depth += change
        covered += hi - lo if depth else 0
        doubled += hi - lo if depth > 1 else 0
    return covered, doubled


def _tally_rows(group: list[_Weighed]) -> tuple[int, int]:
    """`tally` of strided pieces: rows that hold the same pieces count once, times their number."""
    s = max(loop.at for p, _ in group for loop in p.loops)
    even = [(q, weight) for p, weight in group for q in align(p, s)]
    if any(loop.at > s for p, _ in even for loop in p.loops):  # a period longer than a row
        return _tally(even)
    blocks = [(row, over.n, inner, w) for p, w in even for row, over, inner in whole_rows(p, s)]
    starts = sorted({row for row, *_ in blocks} | {row + n for row, n, *_ in blocks})
    covered = doubled = 0
    for lo, hi in pairwise(starts):
        inside = [(inner, w) for row, n, inner, w in blocks if row <= lo and hi <= row + n]
        once, twice = _tally(inside)
        covered, doubled = covered + once * (hi - lo), doubled + twice * (hi - lo)
    return covered, doubled


def _held(layouts: Iterable[Layout], tensor: str) -> list[Piece]:
    """What `layouts` hold of `tensor`, as pieces whose `at` side is the tensor."""
    return [p.flip() for x in layouts for p in x.pieces if p.tensor == tensor]


def _end(pieces: list[Piece]) -> int:
    return max([p.at + p.span + 1 for p in pieces], default=0)


def once(pieces: Sequence[Piece], lo: int, hi: int) -> int:
    """How many indices in `[lo, hi)` the `at` sides of `pieces` name."""
    return tally([q for p in pieces for q in clip(p, lo, hi)])[0]


def _twice(pieces: Sequence[Piece], lo: int, hi: int) -> int:
    return tally([q for p in pieces for q in clip(p, lo, hi)])[1]


def _missing(dst: Layout, sources: list[Layout]) -> Iterator[tuple[str, int, int]]:
    for tensor in dst.tensors:
        wanted, held = _held([dst], tensor), _held(sources, tensor)

        def absent(lo: int, hi: int, w: list[Piece] = wanted, h: list[Piece] = held) -> int:
            return once(w + h, lo, hi) - once(h, lo, hi)

        yield from ((tensor, lo, hi) for lo, hi in ranges(_end(wanted), absent))


def _first_doubled(dst: Layout, sources: list[Layout]) -> tuple[str, int] | None:
    """The first element that `dst` wants and `sources` hold more than once."""
    for tensor in dst.tensors:
        found: list[int] = []
        held = _held(sources, tensor)
        for q in _held([dst], tensor):
            both = [r for h in held for r in meet(_itself(q), h)]
            twice = ranges(_end(both), partial(_twice, both))
            found += [lo for lo, _ in islice(twice, 1)]
        if found:
            return tensor, min(found)
    return None


def _itself(p: Piece) -> Piece:
    """The `at` indices of `p`, each paired with itself: to meet it is to keep those indices."""
    loops = [Loop(loop.n, loop.at, loop.at) for loop in p.loops if loop.at]
    return Piece(p.tensor, p.at, p.at, tuple(loops))


def ranges(end: int, count: Callable[[int, int], int]) -> Iterator[tuple[int, int]]:
    """The maximal ranges in `[0, end)` that are full, where `count` counts what lies in a range."""
    pending: tuple[int, int] | None = None
    todo = [(0, end)]
    while todo:
        lo, hi = todo.pop()
        n = count(lo, hi) if lo < hi else 0
        if n == 0:
            continue
        if n < hi - lo:
            middle = (lo + hi) // 2
            todo += [(middle, hi), (lo, middle)]
        elif pending and pending[1] == lo:
            pending = pending[0], hi
        else:
            if pending:
                yield pending
            pending = lo, hi
    if pending:
        yield pending
