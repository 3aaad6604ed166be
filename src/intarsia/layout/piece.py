"""A piece: one strided correspondence between a buffer and a logical tensor.

Both sides are flat row-major element indices, `at` in the buffer and `to` in the tensor, and
nothing else tells the sides apart: `flip()` swaps them, so each operation below is written
once, for the `at` side.  Three of them carry the whole library:

    align(p, m)      no piece carries across a multiple of m      reshape, permute, concat
    clip(p, lo, hi)  the part with lo <= at < hi                  narrow, flat ranges
    meet(p, q)       where both name the same `at` index          copies between buffers

Nearly every piece in a real checkpoint is one run, or a block of rows by columns, and meets
its partner by interval arithmetic.  The general case cuts both pieces into rows of the larger
stride and meets what is inside the rows.  Strides are never negative.
"""

from __future__ import annotations

from math import lcm, prod

from intarsia.frozen import frozen


@frozen
class Loop:
    """`n` steps; each moves `at` elements in the buffer and `to` in the tensor."""

    n: int
    at: int
    to: int


@frozen
class Piece:
    """`buffer[at + x·loops.at]` is element `to + x·loops.to` of `tensor`."""

    tensor: str
    at: int
    to: int
    loops: tuple[Loop, ...] = ()

    @property
    def size(self) -> int:
        """How many pairs of indices the piece holds."""
        return prod([loop.n for loop in self.loops])

    @property
    def span(self) -> int:
        """The distance from the first to the last `at` index."""
        return sum([(loop.n - 1) * loop.at for loop in self.loops])

    @property
    def run(self) -> int:
        """The length of a piece that is contiguous on both sides, and 0 for any other piece."""
        loops = self.loops
        if not loops:
            return 1
        return loops[0].n if len(loops) == 1 and loops[0].at == 1 == loops[0].to else 0

    def flip(self) -> Piece:
        """The same pairs read from the other side."""
        loops = self.loops
        if len(loops) != 1 or loops[0].at != loops[0].to:
            loops = tuple([Loop(loop.n, loop.to, loop.at) for loop in loops])
        return Piece(self.tensor, self.to, self.at, loops)

    def step(self, loop: Loop, first: int, n: int, *extra: Loop) -> Piece:
        """Keep steps `[first, first + n)` of `loop`; `extra` loops replace it when given."""
        i = self.loops.index(loop)
        kept = [x for x in extra if x.n > 1]
        if not extra and n > 1:
            kept = [loop if n == loop.n else Loop(n, loop.at, loop.to)]
        at, to = self.at + first * loop.at, self.to + first * loop.to
        return Piece(self.tensor, at, to, (*self.loops[:i], *kept, *self.loops[i + 1 :]))

    def canonical(self) -> Piece:
        """The same pairs, loops by falling `at` stride, merged where both sides are contiguous."""
        if len(self.loops) < 2 and (not self.loops or self.loops[0].n > 1):
            return self
        loops: list[Loop] = []
        for loop in sorted(self.loops, key=lambda loop: (-loop.at, -loop.to)):
            if loop.n == 1:
                continue
            last = loops[-1] if loops else None
            if last and last.at == loop.n * loop.at and last.to == loop.n * loop.to:
                loops[-1] = Loop(last.n * loop.n, loop.at, loop.to)
            else:
                loops.append(loop)
        return Piece(self.tensor, self.at, self.to, tuple(loops))


def run(tensor: str, at: int, to: int, n: int) -> Piece:
    """`n` consecutive elements: `buffer[at : at + n]` is `tensor[to : to + n]`."""
    return Piece(tensor, at, to, (Loop(n, 1, 1),) if n > 1 else ())


def align(p: Piece, m: int) -> list[Piece]:
    """Cut `p` until each loop steps by a multiple of `m` on its `at` side or stays in one cell.

    A cell is `[k·m, (k + 1)·m)`.  A run costs at most three pieces: head, body, tail.

    >>> [q.size for q in align(run("w", at=3, to=0, n=10), 4)]
    [1, 8, 1]
    """
    if p.run and p.at % m + p.run <= m:
        return [p]
    inner = [loop for loop in p.loops if loop.at % m]
    span = sum([(loop.n - 1) * loop.at for loop in inner])
    if p.at % m + span < m:
        return [p]
    top = max(inner, key=lambda loop: loop.at)
    twins = [loop for loop in inner if loop.at == top.at]
    if len(twins) > 1:  # two loops that step alike cannot share one cell: write one of them out
        return [q for piece in unrolled(p, twins) for q in align(piece, m)]
    below = span - (top.n - 1) * top.at
    if m % top.at == 0:
        if p.at % top.at + below >= top.at:  # smaller loops carry first: align those
            return [r for q in align(p, top.at) for r in align(q, m)]
        k, phase = m // top.at, p.at % m // top.at
        head = min(top.n, (k - phase) % k)
        body, tail = divmod(top.n - head, k)
        out = [p.step(top, 0, head)] if head else []
        if body:
            cells = Loop(body, m, k * top.to), Loop(k, top.at, top.to)
            out.append(p.step(top, head, k, *cells))
        if tail:
            out.append(p.step(top, head + body * k, tail))
        return out
    period = lcm(m, top.at) // top.at  # strides that do not divide repeat with this many steps
    if top.n > period:
        whole, tail = divmod(top.n, period)
        cells = Loop(whole, period * top.at, period * top.to), Loop(period, top.at, top.to)
        out = align(p.step(top, 0, period, *cells), m)
        return out + (align(p.step(top, whole * period, tail), m) if tail else [])
    out, first = [], 0
    while first < top.n:  # peel up to each carry
        room = m - 1 - (p.at + first * top.at) % m - below
        n = min(top.n - first, room // top.at + 1 if room >= 0 else 1)
        out += align(p.step(top, first, n), m)
        first += n
    return out


def unrolled(p: Piece, twins: list[Loop]) -> list[Piece]:
    """`p` with the shortest of the loops `twins` written out, one piece per step."""
    short = min(twins, key=lambda loop: loop.n)
    return [p.step(short, i, 1) for i in range(short.n)]


def clip(p: Piece, lo: int, hi: int) -> list[Piece]:
    """The part of `p` whose `at` index lies in `[lo, hi)`.

    >>> clip(run("w", at=0, to=100, n=10), 4, 6)
    [Piece(tensor='w', at=4, to=104, loops=(Loop(n=2, at=1, to=1),))]
    """
    if n := p.run:
        start, stop = max(p.at, lo), min(p.at + n, hi)
        if stop - start == n:
            return [p]
        return [run(p.tensor, start, p.to + start - p.at, stop - start)] if start < stop else []
    last = p.at + p.span
    if hi <= p.at or last < lo or hi <= lo:
        return []
    if lo <= p.at and last < hi:
        return [p]
    if len(p.loops) == 1:
        top = p.loops[0]
        start = max(0, -((p.at - lo) // top.at))
        stop = min(top.n, (hi - 1 - p.at) // top.at + 1)
        return [p.step(top, start, stop - start)] if start < stop else []
    top = max(p.loops, key=lambda loop: loop.at)
    below = last - p.at - (top.n - 1) * top.at
    touched = range(
        max(0, -((p.at + below - lo) // top.at)), min(top.n, (hi - 1 - p.at) // top.at + 1)
    )
    whole = range(
        max(0, -((p.at - lo) // top.at)), min(top.n, (hi - 1 - below - p.at) // top.at + 1)
    )
    out = [p.step(top, whole.start, len(whole))] if whole else []
    for x in touched:
        if x not in whole:
            out += clip(p.step(top, x, 1), lo, hi)
    return out


def whole_rows(p: Piece, s: int) -> list[tuple[int, Loop, Piece]]:
    """`p`, whose largest `at` stride is at most `s`, as blocks of whole rows of `s` indices.

    Each block is its first row, the loop over its rows, and the piece inside one row.
    """
    out: list[tuple[int, Loop, Piece]] = []
    for q in align(p, s):
        over = [loop for loop in q.loops if loop.at == s]
        if len(over) > 1:
            for r in unrolled(q, over):
                out += whole_rows(r, s)
            continue
        inside = tuple([loop for loop in q.loops if loop.at != s])
        block = over[0] if over else Loop(1, s, 0)
        out.append((q.at // s, block, Piece(q.tensor, q.at % s, q.to, inside)))
    return out


def meet(p: Piece, q: Piece) -> list[Piece]:
    """Where `p` and `q` name the same `at` index: pieces from `p.to` to `q.to`.

    >>> meet(run("w", at=0, to=100, n=6), run("w", at=4, to=200, n=6))
    [Piece(tensor='w', at=104, to=200, loops=(Loop(n=2, at=1, to=1),))]
    """
    n, m = p.run, q.run
    if n and m:
        lo, hi = max(p.at, q.at), min(p.at + n, q.at + m)
        return [run(p.tensor, p.to + lo - p.at, q.to + lo - q.at, hi - lo)] if lo < hi else []
    if p.at > q.at + q.span or q.at > p.at + p.span:
        return []
    s = max([loop.at for loop in p.loops], default=0)
    t = max([loop.at for loop in q.loops], default=0)
    if s < t:
        return [r.flip() for r in meet(q, p)]
    if s == 0:  # no stride left on either side; zero-stride loops repeat freely
        repeats = [Loop(loop.n, loop.to, 0) for loop in p.loops]
        repeats += [Loop(loop.n, 0, loop.to) for loop in q.loops]
        return [Piece(p.tensor, p.to, q.to, tuple(repeats))]
    a, b = _block(p, s), _block(q, s)
    if a and b:
        return _meet_blocks(p, q, a, b)
    cell = lcm(s, t) if t else s  # strides that do not divide repeat with this period
    if cell > s and any(x.at % cell + x.span >= cell for x in (p, q)):
        return [r for pp in align(p, cell) for qq in align(q, cell) for r in meet(pp, qq)]
    ps, qs = align(p, s), align(q, s)
    grown = any(loop.at > s for x in (*ps, *qs) for loop in x.loops)  # a period longer than a row
    if grown or len(ps) + len(qs) > 2:
        return [r for pp in ps for qq in qs for r in meet(pp, qq)]
    out: list[Piece] = []
    q_rows = whole_rows(q, s)
    for x, over, inner in whole_rows(p, s):
        for y, q_over, q_inner in q_rows:
            row, stop = max(x, y), min(x + over.n, y + q_over.n)
            if row >= stop:
                continue
            both = (Loop(stop - row, over.to, q_over.to),) if stop - row > 1 else ()
            for r in meet(inner, q_inner):
                at, to = r.at + (row - x) * over.to, r.to + (row - y) * q_over.to
                out.append(Piece(r.tensor, at, to, both + r.loops))
    return out


_Block = tuple[int, int, int, int, int, int]


def _block(p: Piece, s: int) -> _Block | None:
    """`p` as `(row, rows, to per row, column, columns, to per column)` in rows of `s` indices.

    None where `p` is no such rectangle, or starts or ends in mid-row.
    """
    loops = p.loops
    if not loops:
        return p.at // s, 1, 0, p.at % s, 1, 0
    last = loops[-1]
    if last.at != 1 or len(loops) > 2:
        return None
    row, column = divmod(p.at, s)
    if len(loops) == 2:
        if loops[0].at != s or column + last.n > s:
            return None
        return row, loops[0].n, loops[0].to, column, last.n, last.to
    if s == 1:
        return row, last.n, last.to, 0, 1, 0
    if column + last.n <= s:
        return row, 1, 0, column, last.n, last.to
    if column == 0 and last.n % s == 0:
        return row, last.n // s, s * last.to, 0, s, last.to
    return None


def _meet_blocks(p: Piece, q: Piece, a: _Block, b: _Block) -> list[Piece]:
    """`meet` of two rectangles in the same rows: the rectangle that both hold."""
    (x, xs, x_to, u, us, u_to), (y, ys, y_to, v, vs, v_to) = a, b
    row, column = max(x, y), max(u, v)
    n, m = min(x + xs, y + ys) - row, min(u + us, v + vs) - column
    if n <= 0 or m <= 0:
        return []
    at = p.to + (row - x) * x_to + (column - u) * u_to
    to = q.to + (row - y) * y_to + (column - v) * v_to
    if m == 1:
        return [Piece(p.tensor, at, to, (Loop(n, x_to, y_to),) if n > 1 else ())]
    if n == 1 or (x_to == m * u_to and y_to == m * v_to):
        return [Piece(p.tensor, at, to, (Loop(n * m, u_to, v_to),))]
    return [Piece(p.tensor, at, to, (Loop(n, x_to, y_to), Loop(m, u_to, v_to)))]
