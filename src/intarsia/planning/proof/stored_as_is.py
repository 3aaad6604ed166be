"""Logical tensors that are stored ones as they are: most are, and of those hardly anything is left to prove."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from math import prod

import numpy as np

from intarsia.layout import Layout
from intarsia.mesh import Box, Shape
from intarsia.planning.chunks import Chunks
from intarsia.planning.made_when_asked import MadeWhenAsked
from intarsia.planning.manifest import Manifest, Stored
from intarsia.planning.proof.tiling import TilingFault
from intarsia.planning.whole_tensor import WholeTensor, not_whole

Tiling = Callable[[Shape, Sequence[Box]], TilingFault | None]


def is_whole(shape: Shape, sources: tuple[Stored, ...]) -> bool:
    """Whether one stored tensor is a logical one as it is."""
    if len(sources) != 1 or len(sources[0].layout.pieces) != 1:
        return False
    (piece,) = sources[0].layout.pieces
    return (
        sources[0].layout.shape == shape
        and not piece.at
        and not piece.to
        and piece.run == sources[0].layout.size
    )


def is_one_chunk(stored: Stored) -> bool:
    """Whether one chunk holds all of a stored tensor, which needs nothing else to be read."""
    if len(stored.chunks) != 1 or stored.value.parts:
        return False
    (chunk,) = stored.chunks
    whole = chunk.box.shape == stored.layout.shape and not any(chunk.box.offsets)
    return whole and chunk.length_bytes >= stored.nbytes


def in_one_chunk(src: Manifest, name: str) -> Stored | None:
    """The stored tensor that is a logical one as it is, in one chunk: then nothing is wrong with either.

    None where that is not so, or not seen at a glance.
    """
    sources = src.sources.get(name, ())
    if len(sources) != 1 or not is_whole(src.logical[name].shape, sources):
        return None
    return sources[0] if is_one_chunk(sources[0]) else None


def runs_of_files(src: Manifest) -> Mapping[str, WholeTensor]:
    """The logical tensors that are runs of files as they are, and that nothing else holds elements of."""
    stored, logical = src.stored, src.logical
    if not isinstance(stored, MadeWhenAsked) or not isinstance(logical, MadeWhenAsked):
        return {}
    found, others, one = dict[str, WholeTensor](), set[str](), logical.held.get
    held: Stored | WholeTensor
    for name, held in stored.held.items():
        if not isinstance(held, WholeTensor):
            others.update(held.layout.tensors)
            continue
        _, dtype, shape, _, length_bytes, _ = held
        size_bytes = prod(shape) * dtype.itemsize
        if held.name == name and one(name) is held and length_bytes == size_bytes > 0:
            found[name] = held
        else:
            others.add(held.name)
    for name in others & found.keys():
        del found[name]
    return found


def runs_in(layout: Layout, whole: Mapping[str, WholeTensor]) -> tuple[WholeTensor, ...]:
    """For each piece of a layout the whole tensor that it is a run of; none unless all are, and fill it in their order.

    Then each place is for one element, which exists, and which one byte range of one file holds.
    """
    found, end = list[WholeTensor](), 0
    for p in layout.pieces:
        held, count = whole.get(p.tensor), p.run
        if held is None or not count or p.at != end or p.to < 0:
            return ()
        if (p.to + count) * held.dtype.itemsize > held.length_bytes:
            return ()
        end += count
        found.append(held)
    return tuple(found) if end == layout.size else ()


def whole_in_columns(src: Manifest, tiling: Tiling) -> Mapping[str, Stored]:
    """The logical tensors that are stored ones as they are, which nothing else holds elements of and whose chunks,
    in columns, nothing is wrong with."""
    logical, found, others = src.logical, dict[str, Stored](), set[str]()
    alike: dict[Hashable, list[tuple[str, Chunks]]] = {}
    for stored in not_whole(src.stored):
        layout, chunks = stored.layout, stored.chunks
        name = layout.pieces[0].tensor if len(layout.pieces) == 1 else ""
        if not isinstance(chunks, Chunks) or not name or name in found or stored.value.parts:
            others.update(layout.tensors)
        elif name not in logical or not is_whole(logical[name].shape, (stored,)):
            others.add(name)
        else:
            found[name] = stored
            kind = id(chunks.places), id(chunks.boxes), layout.shape, stored.dtype.itemsize
            alike.setdefault(kind, []).append((name, chunks))
    for members in alike.values():
        others.update(_faulty(members, found[members[0][0]], tiling))
    if found and isinstance(src.stored, MadeWhenAsked):
        held = src.stored.held.values()
        others.update([x.name for x in held if isinstance(x, WholeTensor)])
    for name in others & found.keys():
        del found[name]
    return found


def _faulty(members: Sequence[tuple[str, Chunks]], first: Stored, tiling: Tiling) -> Iterable[str]:
    """Which of tensors that are cut alike, `first` among them, have chunks that something is wrong with."""
    boxes, places = members[0][1].boxes, members[0][1].places
    if tiling(first.shape, boxes) is not None:
        return [name for name, _ in members]
    needed = np.array([box.size for box in boxes], np.int64) * first.dtype.itemsize
    at = np.array([chunks.first for _, chunks in members])[:, None] + np.arange(len(boxes))
    short = (places.lengths[at] < needed).any(axis=1)
    return [members[k][0] for k in np.flatnonzero(short).tolist()]
