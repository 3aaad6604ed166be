"""The layout of a tensor that has one element for each block of another: a scale for many numbers."""

from __future__ import annotations

from itertools import product

from intarsia.layout.layout import Layout
from intarsia.layout.piece import Loop, Piece


def grid_of(shape: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, ...]:
    """How many blocks a tensor has along each axis; the last may be smaller.

    >>> grid_of((11, 14), (4, 3))
    (3, 5)
    """
    return tuple(-(-n // b) for n, b in zip(shape, block, strict=True))


def one_per_block(name: str, shape: tuple[int, ...], block: tuple[int, ...]) -> Layout:
    """For each block of the tensor `name` one place, which is for all of its elements."""
    grid = grid_of(shape, block)
    ways: list[list[tuple[int, int, tuple[Loop, ...]]]] = []
    at_stride = to_stride = 1
    for n, b, g in reversed([*zip(shape, block, grid, strict=True)]):
        whole, rest = divmod(n, b)
        way: list[tuple[int, int, tuple[Loop, ...]]] = []
        if whole:
            loops = (Loop(whole, at_stride, b * to_stride), Loop(b, 0, to_stride))
            way.append((0, 0, loops))
        if rest:
            way.append((whole * at_stride, whole * b * to_stride, (Loop(rest, 0, to_stride),)))
        ways.append(way)
        at_stride, to_stride = at_stride * g, to_stride * n
    pieces = []
    for each in product(*reversed(ways)):
        at, to = sum(at for at, _, _ in each), sum(to for _, to, _ in each)
        steps = tuple(loop for _, _, loops in each for loop in loops if loop.n > 1)
        pieces.append(Piece(name, at, to, steps))
    return Layout(grid, tuple(pieces))
