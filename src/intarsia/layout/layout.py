"""A layout: an integer array that is never materialised.

Picture a rank's local buffer as an array whose entries are not weights but *element ids*:
"row-major element 4711 of q_proj".  A `Layout` keeps that id array compressed, as a few strided
pieces.  Its operations are NumPy's, and NumPy is their specification: do the same to
`np.arange` and compare.

    gate, up = Layout.of("gate", (8, 4)), Layout.of("up", (8, 4))
    fc1 = concat([chunk(gate, 2)[1], chunk(up, 2)[1]])      # SwiGLU on tensor-parallel rank 1

Whatever is irregular (uneven shards, flat ranges) becomes more pieces, never a richer kind of
piece.  Two layouts may hold the same ids in different cuts, so `==` asks for more than equal
ids; compare through `copies` or `cover`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod

from intarsia.errors import LayoutError
from intarsia.frozen import frozen
from intarsia.layout.piece import Loop, Piece, align, clip, meet, run


@frozen
class Layout:
    """An id array: a shape, and the pieces that fill it; places that no piece fills are padding."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @staticmethod
    def of(tensor: str, shape: Sequence[int]) -> Layout:
        """The whole of `tensor`, in row-major order."""
        shape = checked_shape(shape)
        n = prod(shape)
        return Layout(shape, (run(tensor, 0, 0, n),) if n else ())

    @property
    def size(self) -> int:
        """How many places the layout has, padding included."""
        return prod(self.shape)

    @property
    def mapped(self) -> int:
        """How many places hold an element, that is, are no padding."""
        return sum([p.size for p in self.pieces])

    @property
    def is_run(self) -> bool:
        """Whether it is consecutive elements of one tensor, without padding."""
        pieces = self.pieces
        return len(pieces) == 1 and not pieces[0].at and pieces[0].run == prod(self.shape)

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the tensors that the layout holds elements of, each once, in order."""
        pieces = self.pieces
        return (pieces[0].tensor,) if len(pieces) == 1 else tuple({p.tensor: None for p in pieces})

    def rename(self, names: Mapping[str, str] | Callable[[str], str]) -> Layout:
        """The same places filled from other tensors: `names` gives the new name of each."""
        if callable(names):
            name_of = names
        else:
            unknown = [name for name in self.tensors if name not in names]
            if unknown:
                raise LayoutError(f"rename has no new name for {unknown[0]!r}, it has {[*names]}")
            name_of = names.__getitem__
        pieces = [Piece(name_of(p.tensor), p.at, p.to, p.loops) for p in self.pieces]
        return Layout(self.shape, tuple(pieces))

    def reshape(self, *shape: int) -> Layout:
        """NumPy's `x.reshape(shape)`; one size may be -1."""
        if -1 in shape:
            known = -prod(shape)
            if shape.count(-1) > 1 or known == 0 or self.size % known:
                raise LayoutError(
                    f"-1 has no single value in a reshape of {self.shape} "
                    f"({self.size:,} elements) to {shape}"
                )
            shape = tuple([self.size // known if n == -1 else n for n in shape])
        if prod(checked_shape(shape)) != self.size:
            raise LayoutError(
                f"cannot reshape {self.shape} ({self.size:,} elements) "
                f"to {shape} ({prod(shape):,} elements)"
            )
        return Layout(shape, self.pieces)

    def narrow(self, axis: int, lo: int, hi: int) -> Layout:
        """NumPy's `x[..., lo:hi, ...]` on `axis`."""
        axis = self.axis_of(axis)
        n, s = self.shape[axis], self._stride(axis)
        if not 0 <= lo <= hi <= n:
            raise LayoutError(f"slice [{lo}:{hi}) leaves axis {axis} of {self.shape}, size {n}")
        if hi - lo == n:
            return self
        shape = (*self.shape[:axis], hi - lo, *self.shape[axis + 1 :])
        if 0 in shape:
            return Layout(shape, ())
        out: list[Piece] = []
        if axis == 0 or prod(self.shape[:axis]) == 1:  # the slice is one flat range
            first = lo * s
            for p in self.pieces:
                for c in clip(p, first, hi * s):
                    out.append(Piece(c.tensor, c.at - first, c.to, c.loops) if first else c)
            return Layout(shape, tuple(out))
        if self._is_one_run():
            starts = [0] * len(shape)
            starts[axis] = lo
            return self._box_of_run(starts, shape)
        for p in self.aligned(s * n, s):
            outer, along, inner = [], [], []
            for loop in p.loops:
                if loop.at % (s * n) == 0:
                    outer.append(Loop(loop.n, loop.at // n * (hi - lo), loop.to))
                elif loop.at % s == 0:
                    along.append(Loop(loop.n, loop.at // s, loop.to))
                else:
                    inner.append(loop)
            row, rest = divmod(p.at, s * n)
            for c in clip(Piece(p.tensor, rest // s, p.to, tuple(along)), lo, hi):
                at = row * s * (hi - lo) + (c.at - lo) * s + rest % s
                kept = [Loop(loop.n, loop.at * s, loop.to) for loop in c.loops]
                out.append(Piece(p.tensor, at, c.to, (*outer, *kept, *inner)).canonical())
        return Layout(shape, tuple(out))

    def box(self, offsets: Sequence[int], shape: Sequence[int]) -> Layout:
        """NumPy's `x[o0:o0+n0, o1:o1+n1, ...]`: the box of `shape` that starts at `offsets`."""
        shape = checked_shape(shape)
        if not len(offsets) == len(shape) == len(self.shape):
            raise LayoutError(
                f"a box in {self.shape} needs {len(self.shape)} offsets and sizes, "
                f"found {len(offsets)} and {len(shape)}"
            )
        if self._is_one_run() and 0 not in shape:
            return self._box_of_run(offsets, shape)
        _check_box(self.shape, offsets, shape)
        out = self
        for axis, (lo, n) in enumerate(zip(offsets, shape, strict=True)):
            out = out.narrow(axis, lo, lo + n)
        return out

    def permute(self, *axes: int) -> Layout:
        """NumPy's `x.transpose(axes)`: axis `i` of the result is axis `axes[i]` of `self`."""
        order = [self.axis_of(a) for a in axes]
        if sorted(order) != [*range(len(self.shape))]:
            raise LayoutError(f"permute{axes} does not name each axis of {self.shape} once")
        shape = tuple([self.shape[a] for a in order])
        old = [self._stride(a) for a in range(len(order))]
        new = {a: prod(shape[i + 1 :]) for i, a in enumerate(order)}
        digits = [(s, self.shape[a], new[a]) for a, s in enumerate(old)]

        def moved(index: int) -> int:
            return sum([index // s % n * stride for s, n, stride in digits])

        out = []
        for p in self.aligned(*old):
            loops = tuple([Loop(loop.n, moved(loop.at), loop.to) for loop in p.loops])
            out.append(Piece(p.tensor, moved(p.at), p.to, loops).canonical())
        return Layout(shape, tuple(out))

    def transpose(self, a: int, b: int) -> Layout:
        """NumPy's `x.swapaxes(a, b)`."""
        a, b = self.axis_of(a), self.axis_of(b)
        axes = [*range(len(self.shape))]
        axes[a], axes[b] = b, a
        return self.permute(*axes)

    def expand(self, axis: int, n: int) -> Layout:
        """NumPy's `np.repeat(x, n, axis)` of an axis of length 1: one element, `n` places."""
        axis = self.axis_of(axis)
        if self.shape[axis] != 1 or n < 0:
            raise LayoutError(
                f"expand to {n} needs an axis of length 1, axis {axis} of {self.shape} "
                f"has length {self.shape[axis]}"
            )
        shape = (*self.shape[:axis], n, *self.shape[axis + 1 :])
        if n == 0:
            return Layout(shape, ())
        s = self._stride(axis)
        out = []
        for p in self.aligned(s):
            loops = [Loop(x.n, x.at * n, x.to) if x.at % s == 0 else x for x in p.loops]
            at = p.at // s * s * n + p.at % s
            out.append(Piece(p.tensor, at, p.to, (*loops, Loop(n, s, 0))).canonical())
        return Layout(shape, tuple(out))

    def axis_of(self, axis: int) -> int:
        """`axis` counted from the front: NumPy's negative axes count from the back."""
        if not -len(self.shape) <= axis < len(self.shape):
            raise LayoutError(f"axis {axis} of {self.shape}, which has {len(self.shape)} axes")
        return axis % len(self.shape)

    def _stride(self, axis: int) -> int:
        return prod(self.shape[axis + 1 :])

    def aligned(self, *moduli: int) -> list[Piece]:
        """The pieces, none of which carries across a multiple of one of `moduli`."""
        pieces = list(self.pieces)
        for m in moduli:
            if m > 1:
                pieces = [q for p in pieces for q in align(p, m)]
        return pieces

    def _is_one_run(self) -> bool:
        return len(self.pieces) == 1 and self.pieces[0].run == self.size

    def _box_of_run(self, offsets: Sequence[int], shape: tuple[int, ...]) -> Layout:
        """`box` in closed form, for a layout that one run fills and a box that is not empty."""
        (whole,) = self.pieces
        first, loops = _loops_of_box(self.shape, tuple(offsets), shape)
        return Layout(shape, (Piece(whole.tensor, 0, whole.to + first, loops),))


def _check_box(whole: Sequence[int], offsets: Sequence[int], shape: Sequence[int]) -> None:
    """Raise where a box is not inside an array of shape `whole_layout`."""
    for axis, (lo, n, size) in enumerate(zip(offsets, shape, whole, strict=True)):
        if not 0 <= lo <= lo + n <= size:
            raise LayoutError(f"box [{lo}:{lo + n}) leaves axis {axis} of {whole}, size {size}")


@lru_cache(maxsize=1 << 12)  # thousands of tensors have one shape and are cut alike
def _loops_of_box(
    whole: tuple[int, ...], offsets: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, tuple[Loop, ...]]:
    """The first element of a box that is not empty in a row-major array, and the loops over the box."""
    _check_box(whole, offsets, shape)
    first, at_stride, to_stride = 0, 1, 1
    loops: list[Loop] = []  # innermost first
    for lo, n, full in zip(offsets[::-1], shape[::-1], whole[::-1], strict=True):
        first += lo * to_stride
        if n > 1:
            if loops and loops[-1].to * loops[-1].n == to_stride:
                loops[-1] = Loop(loops[-1].n * n, loops[-1].at, loops[-1].to)
            else:
                loops.append(Loop(n, at_stride, to_stride))
        at_stride *= n
        to_stride *= full
    return first, tuple(reversed(loops))


def renaming(old: Layout, new: Layout) -> Mapping[str, str] | None:
    """The names for which `old.rename` gives `new`, each of another tensor; None where there are none.

    >>> renaming(Layout.of("a", (2, 3)), Layout.of("b", (2, 3)))
    {'a': 'b'}
    """
    if old.shape != new.shape or len(old.pieces) != len(new.pieces):
        return None
    names: dict[str, str] = {}
    for p, q in zip(old.pieces, new.pieces, strict=True):
        if p.at != q.at or p.to != q.to or p.loops != q.loops:
            return None
        if names.setdefault(p.tensor, q.tensor) != q.tensor:
            return None
    return names if len({*names.values()}) == len(names) else None


def checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """`shape` as a tuple, none of its sizes negative."""
    if shape and min(shape) < 0:
        raise LayoutError(f"shape {tuple(shape)} has a negative size, {min(shape)}")
    return tuple(shape)


def copies(src: Layout, dst: Layout) -> list[Piece]:
    """Strided copies (`at` in `src`, `to` in `dst`), one pair for every two places of one element.

    >>> w = Layout.of("w", (4, 3))
    >>> copies(w.narrow(0, 2, 4), w)
    [Piece(tensor='w', at=0, to=6, loops=(Loop(n=6, at=1, to=1),))]
    """
    return copies_to(src, by_tensor(dst))


def whole_layout(tensor: str, shape: tuple[int, ...]) -> Layout:
    """`Layout.of` a tensor with a shape that was checked; the loops of equal sizes are shared."""
    n = prod(shape)
    return Layout(shape, (Piece(tensor, 0, 0, _run(n)),)) if n else Layout(shape, ())


@lru_cache(maxsize=1024)
def _run(n: int) -> tuple[Loop, ...]:
    return run("", 0, 0, n).loops


def by_tensor(layout: Layout) -> Mapping[str, Sequence[Piece]]:
    """The pieces of a layout, by the tensor that each holds elements of."""
    found: dict[str, list[Piece]] = {}
    for piece in layout.pieces:
        found.setdefault(piece.tensor, []).append(piece)
    return found


def copies_to(src: Layout, wanted: Mapping[str, Sequence[Piece]]) -> list[Piece]:
    """`copies` into the layout whose pieces are `wanted`: many sources of one look at it once."""
    out: list[Piece] = []
    for p in src.pieces:
        n = p.run
        for q in wanted.get(p.tensor, ()):
            m = q.run
            if n and m:
                lo, hi = max(p.to, q.to), min(p.to + n, q.to + m)
                if lo < hi:
                    out.append(run(p.tensor, p.at + lo - p.to, q.at + lo - q.to, hi - lo))
            else:
                out += [r.canonical() for r in meet(p.flip(), q.flip())]
    return out
