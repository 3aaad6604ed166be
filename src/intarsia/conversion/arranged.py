"""Whether the places that a format gives are right: one for every element, and no byte for two things.

A plan proves where elements come from.  Where they go is a format's own word, and whoever adds a format
may be wrong about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from intarsia.errors import CoverageError
from intarsia.format.arrangement import (
    SlotPlaces,
    Wrapped,
    in_columns,
    joined_places,
    whole_numbers,
)
from intarsia.format.base import Arrangement, Slot
from intarsia.mesh import Box, Shape
from intarsia.planning.chunks import Numbers, repeated
from intarsia.planning.manifest import Target
from intarsia.planning.proof.tiling import tiling_fault

_NO_FILE = 1 << 60
"""No file is as long, and sums of a few such numbers have less than 64 bits."""


def check_arrangement(name: str, targets: Sequence[Target], arranged: Arrangement) -> None:
    """Raise where an element has no place or two, or where places overlap or leave their files."""
    fault = next(_faults(targets, arranged), None)
    if fault is not None:
        raise CoverageError(
            f"the format {name} lays out its files wrongly: {fault}",
            hint=f"fix `arrange` of the format {name}; nothing was written",
        )


def _faults(targets: Sequence[Target], arranged: Arrangement) -> Iterator[str]:
    names = [target.name for target in targets]
    if unplaced := [name for name in names if name not in arranged.slots]:
        yield f"`{unplaced[0]}` has no place"
        return
    fixed = [Slot(Box.whole((len(data),)), file, at) for file, at, data in arranged.fixed]
    (of_fixed,), columns = in_columns([fixed]), [arranged.columns[name] for name in names]
    kinds: dict[tuple[int, Shape, int], int] = {}
    around, which = [_around(of_fixed.wrapped, 1)], list[int]()
    for target, slots in zip(targets, columns, strict=True):
        if not 0 <= slots.first <= len(slots.places.files) - len(slots.wrapped.boxes):
            yield f"`{target.name}` has no place in the columns from number {slots.first} on"
            return
        key = id(slots.wrapped), target.layout.shape, target.dtype.itemsize
        if (kind := kinds.get(key)) is None:
            if fault := tiling_fault(target.shape, slots.wrapped.boxes):
                yield f"`{target.name}`: {fault}"
            kind = kinds[key] = len(around)
            around.append(_around(slots.wrapped, target.dtype.itemsize))
        which.append(kind)
    places, lengths = joined_places([*columns, of_fixed]), repeated(around, [*which, 0])
    counts = [x.shape[1] for x in around]
    whose = np.repeat(np.arange(len(names) + 1), [counts[kind] for kind in (*which, 0)])
    yield from _wrong_places(places, lengths, whose, [*names, "a fixed part"], arranged.files)
    for file in arranged.closing.keys() & arranged.files.keys():
        yield f"{file} is written last, but it also holds tensors or fixed parts"


def _around(wrapped: Wrapped, itemsize: int) -> Numbers:
    """How many bytes are wrapped before the elements of each box, how many they are with these, and without."""
    rows = list[tuple[int, int, int]]()
    for box, wrapping in zip(*wrapped, strict=True):
        nbytes = prod(box.shape) * itemsize
        both = (0, nbytes) if wrapping is None else (wrapping.start_bytes, wrapping.length_bytes)
        rows.append((*both, nbytes))
    return whole_numbers(rows)


def _wrong_places(
    places: SlotPlaces,
    around: Numbers,
    whose: Numbers,
    names: Sequence[str],
    files: Mapping[str, int],
) -> Iterator[str]:
    """Slots that overlap or leave their file; `around` says how long they are, `whose` which of `names` they belong to."""
    every = np.stack([places.starts, places.gaps, *around])
    if not np.issubdtype(np.result_type(every, places.files), np.integer):
        yield "places in files are whole numbers of bytes"
        return
    if every.max(initial=0) >= _NO_FILE or every.min(initial=0) <= -_NO_FILE:
        far = ((every >= _NO_FILE) | (every <= -_NO_FILE)).any(0).argmax()
        yield f"{names[whose[far]]} lies where no file reaches"
        return
    # The bytes of elements, those wrapped around them, and the gap before.
    starts, gaps, before, lengths, nbytes = every
    begins, ends = starts - before - gaps, starts - before + lengths
    for k in np.flatnonzero((gaps < 0) | (before < 0) | (before + nbytes > lengths)).tolist():
        bytes_of = f"bytes [{starts[k]:,}:{starts[k] + nbytes[k]:,})"
        yield f"`{names[whose[k]]}`: {bytes_of} lie outside of what is wrapped around them"
    order = np.lexsort((begins, places.files))
    order = order[begins[order] != ends[order]]
    sizes = np.array([min(files.get(name, -1), _NO_FILE) for name in places.names], np.int64)
    of, begins, ends, whose = places.files[order], begins[order], ends[order], whose[order]
    for k in np.flatnonzero(sizes[of] < 0).tolist():
        yield f"{places.names[of[k]]} holds `{names[whose[k]]}`, and has no length"
    for k in np.flatnonzero((begins < 0) | (ends > sizes[of])).tolist():
        file = f"{places.names[of[k]]}, which has {sizes[of[k]]:,}"
        yield f"bytes [{begins[k]:,}:{ends[k]:,}) of {file}: {names[whose[k]]}"
    for k in np.flatnonzero((of[1:] == of[:-1]) & (begins[1:] < ends[:-1])).tolist():
        both = f"[{begins[k + 1]:,}:{min(ends[k], ends[k + 1]):,}) of {places.names[of[k]]}"
        yield f"bytes {both} are those of {names[whose[k]]} and of {names[whose[k + 1]]}"
