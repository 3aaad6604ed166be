"""The chunks of tensors as a `.metadata` lists them: within their tensor, and each matched to its blob."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

from intarsia.errors import FormatError
from intarsia.mesh import Box
from intarsia.planning.chunks import FileRange

PlaceOf = dict[tuple[str, Any], FileRange]
"""The place of each (name, offset)."""
_Axes = tuple[int, ...]
_Cut = tuple[_Axes, tuple[_Axes, ...], tuple[_Axes, ...]]
Cuts = dict[_Cut, tuple[Box, ...]]
_STATE, _OFFSETS, _SIZES = attrgetter("state"), itemgetter("offsets"), itemgetter("sizes")


def chunks_of(
    name: str, shape: _Axes, listed: Any, places: PlaceOf, missing: list[str], cuts: Cuts
) -> tuple[tuple[Box, ...], list[FileRange]]:
    """The boxes of a tensor's chunks, and their places; a cut that many tensors have is checked once, and its boxes
    are one object."""
    cut = _cut_of(shape, listed)
    if cut is not None and cut in cuts:
        held = [place for offsets in cut[1] if (place := places.get((name, offsets)))]
        if len(held) == len(cut[1]):
            return cuts[cut], held
    boxes, held = _chunks_one_by_one(name, shape, listed, places, missing)
    if cut is not None and len(boxes) == len(listed):
        cuts[cut] = boxes
    return boxes, held


def _cut_of(shape: _Axes, listed: Any) -> _Cut | None:
    """A shape with the offsets and the sizes of its chunks; None where one of those is no tuple of integers."""
    try:
        states = [*map(_STATE, listed)]
        offsets, sizes = tuple(map(_OFFSETS, states)), tuple(map(_SIZES, states))
    except (AttributeError, LookupError, TypeError):
        return None
    tuples = {*map(type, offsets), *map(type, sizes)} <= {tuple}
    plain = tuples and {*map(type, chain(*offsets, *sizes))} <= {int}
    return (shape, offsets, sizes) if plain else None


def _chunks_one_by_one(
    name: str, shape: _Axes, listed: Any, places: PlaceOf, missing: list[str]
) -> tuple[tuple[Box, ...], list[FileRange]]:
    """The same, up to the first that is wrong; those that were never stored go to `missing`."""
    boxes, held, taken = list[Box](), list[FileRange](), set[_Axes]()
    for chunk in listed:
        offsets, sizes = chunk.state["offsets"], chunk.state["sizes"]
        if type(offsets) is not tuple or type(sizes) is not tuple:
            raise FormatError(f"a chunk of {name} has no offsets or no sizes")
        if len(offsets) != len(shape) or len(sizes) != len(shape):
            raise FormatError(
                f"a chunk of {name} has {len(offsets)} offsets and {len(sizes)} sizes for "
                f"{len(shape)} axes"
            )
        for at, n, whole in zip(offsets, sizes, shape, strict=True):
            if type(at) is not int or type(n) is not int or at < 0 or n < 0 or at + n > whole:
                raise FormatError(f"chunk {offsets} + {sizes} of {name} is not within {shape}")
        place = places.get((name, offsets))
        if 0 not in sizes:
            if offsets in taken:
                raise FormatError(f"{name} has two chunks at {offsets}")
            taken.add(offsets)
        if place is not None:
            boxes.append(Box(offsets, sizes))
            held.append(place)
        elif 0 not in sizes:
            missing.append(f"{name} at {offsets}")
    return tuple(boxes), held
