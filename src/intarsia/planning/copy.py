"""Copies: which elements of which source chunk go where in a destination buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

from intarsia.frozen import frozen
from intarsia.layout import Layout, Loop, Piece, by_tensor, copies_to
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Manifest, Stored


@frozen
class Copy:
    """`piece.at` counts elements of the source chunk, `piece.to` those of the destination buffer."""

    stored: Stored
    chunk: Chunk
    piece: Piece


@lru_cache(maxsize=1 << 14)
def box_copy(src: Box, dst: Box) -> Piece | None:
    """The strided copy between the row-major buffers of two boxes of one tensor.

    >>> box_copy(Box((0, 0), (4, 4)), Box((0, 2), (4, 2)))
    Piece(tensor='', at=2, to=0, loops=(Loop(n=4, at=4, to=2), Loop(n=2, at=1, to=1)))
    """
    both = src.meet(dst)
    if both is None:
        return None
    at = to = 0
    at_stride = to_stride = 1
    loops: list[Loop] = []
    for axis in range(len(both.shape) - 1, -1, -1):
        n = both.shape[axis]
        at += (both.offsets[axis] - src.offsets[axis]) * at_stride
        to += (both.offsets[axis] - dst.offsets[axis]) * to_stride
        last = loops[-1] if loops else None
        if last and last.n * last.at == at_stride and last.n * last.to == to_stride:
            loops[-1] = Loop(last.n * n, last.at, last.to)
        elif n > 1:
            loops.append(Loop(n, at_stride, to_stride))
        at_stride *= src.shape[axis]
        to_stride *= dst.shape[axis]
    return Piece("", at, to, tuple(reversed(loops)))


@lru_cache(maxsize=1 << 14)
def layout_of_box(layout: Layout, box: Box) -> Layout:
    """The layout of a box of a tensor."""
    return layout.box(box.offsets, box.shape)


def copies_into(
    layout: Layout,
    box: Box,
    sources: tuple[Stored, ...],
    held_of: Callable[[Stored, Layout], Layout] = lambda stored, layout: stored.layout,
) -> Iterator[Copy]:
    """Every copy from `sources` into the row-major buffer of `box` of a tensor with `layout`.

    `held_of` may leave out of a source's layout what is of other tensors.
    """
    wanted: Mapping[str, Sequence[Piece]] | None = None
    for stored in sources:
        if stored.layout is layout or stored.layout == layout:
            for chunk in stored.chunks:
                piece = box_copy(chunk.box, box)
                if piece is not None:
                    yield Copy(stored, chunk, piece)
            continue
        if wanted is None:
            wanted = by_tensor(layout_of_box(layout, box))
        held = held_of(stored, layout)
        if wanted.keys().isdisjoint(held.tensors):
            continue
        for chunk in stored.chunks:
            for p in copies_to(layout_of_box(held, chunk.box), wanted):
                yield Copy(stored, chunk, Piece("", p.at, p.to, p.loops))


def sources_of(layout: Layout, manifest: Manifest) -> tuple[Stored, ...]:
    """The stored tensors of a checkpoint that hold elements of a layout's tensors, each once."""
    if len(layout.pieces) == 1:
        return manifest.sources.get(layout.pieces[0].tensor, ())
    found = {id(s): s for name in layout.tensors for s in manifest.sources.get(name, ())}
    return tuple(found.values())
