"""Layouts out of parts, and parts out of layouts: `concat`, `stack`, `padding`, `split`, `chunk`.

Fusion and sharding are these five in some order, and the order is the meaning:

    chunk(concat([gate, up]), tp)[t]                       # rank 0 holds gate, rank 1 holds up
    concat([chunk(gate, tp)[t], chunk(up, tp)[t]])         # every rank holds half of each
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from intarsia.errors import LayoutError
from intarsia.layout.layout import Layout, checked_shape
from intarsia.layout.piece import Loop, Piece, run


def padding(*shape: int) -> Layout:
    """A layout of `shape` that holds no element."""
    return Layout(checked_shape(shape), ())


def concat(parts: Sequence[Layout], axis: int = 0) -> Layout:
    """NumPy's `np.concatenate(parts, axis)`."""
    if not parts:
        raise LayoutError("concat needs at least 1 part, found 0")
    axis = parts[0].axis_of(axis)
    before, after = parts[0].shape[:axis], parts[0].shape[axis + 1 :]
    for x in parts:
        if (x.shape[:axis], x.shape[axis + 1 :]) != (before, after):
            raise LayoutError(
                f"concat on axis {axis} of {parts[0].shape} and {x.shape}: the other axes differ"
            )
    total, s, start = sum([x.shape[axis] for x in parts]), prod(after), 0
    out: list[Piece] = []
    flat = prod(before) == 1
    for x in parts:
        cell = s * x.shape[axis]
        for p in x.pieces if flat else x.aligned(cell):
            if flat:
                q = Piece(p.tensor, p.at + start * s, p.to, p.loops)
            else:
                row, rest = divmod(p.at, cell)
                loops = [
                    loop if loop.at % cell else Loop(loop.n, loop.at // cell * s * total, loop.to)
                    for loop in p.loops
                ]
                at = (row * total + start) * s + rest
                q = Piece(p.tensor, at, p.to, tuple(loops)).canonical()
            if not (out and _joined(out, q)):
                out.append(q)
        start += x.shape[axis]
    return Layout((*before, total, *after), tuple(out))


def _joined(out: list[Piece], q: Piece) -> bool:
    """Whether `q` continues the last run of `out`; if so, it is now part of it."""
    p = out[-1]
    n, m = p.run, q.run
    if n and m and p.tensor == q.tensor and p.at + n == q.at and p.to + n == q.to:
        out[-1] = run(p.tensor, p.at, p.to, n + m)
        return True
    return False


def stack(parts: Sequence[Layout], axis: int = 0) -> Layout:
    """NumPy's `np.stack(parts, axis)`."""
    if not parts:
        raise LayoutError("stack needs at least 1 part, found 0")
    rank = len(parts[0].shape) + 1
    if not -rank <= axis < rank:
        raise LayoutError(f"stack on axis {axis} of a result that has {rank} axes")
    i = axis % rank
    for x in parts:
        if x.shape != parts[0].shape:
            raise LayoutError(f"stack of {parts[0].shape} and {x.shape}: the shapes differ")
    return concat([Layout((*x.shape[:i], 1, *x.shape[i:]), x.pieces) for x in parts], i)


def split(x: Layout, sizes: Sequence[int], axis: int = 0) -> list[Layout]:
    """`torch.split(x, sizes, axis)`: consecutive parts of the given sizes."""
    axis = x.axis_of(axis)
    if sum(checked_shape(sizes)) != x.shape[axis]:
        raise LayoutError(
            f"split into {list(sizes)} adds up to {sum(sizes)}, "
            f"axis {axis} of {x.shape} has {x.shape[axis]}"
        )
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [x.narrow(axis, lo, lo + n) for lo, n in zip(starts, sizes, strict=True)]


def shard(x: Layout, n: int, i: int, axis: int = 0) -> Layout:
    """`chunk(x, n, axis)[i]`, without the other parts: what rank `i` of `n` keeps of `x`."""
    axis = x.axis_of(axis)
    if not 0 <= i < n:
        raise LayoutError(f"part {i} of {n} of axis {axis} of {x.shape}")
    size = x.shape[axis]
    step = -(-size // n)
    return x.narrow(axis, min(i * step, size), min((i + 1) * step, size))


def chunk(x: Layout, n: int, axis: int = 0) -> list[Layout]:
    """`torch.chunk(x, n, axis)`, but always `n` parts: the last ones may be short or empty."""
    if n < 1:
        raise LayoutError(f"chunk into {n} parts of axis {axis} of {x.shape}")
    return [shard(x, n, i, axis) for i in range(n)]
