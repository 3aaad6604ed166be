"""Whether the places that a format gives are right: one for every element, and no byte for two things.

A plan proves where elements come from.  Where they go is a format's own word, and whoever adds a format
may be wrong about it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

from intarsia.errors import CoverageError
from intarsia.format.base import Arrangement
from intarsia.mesh import Box, Shape
from intarsia.planning.manifest import Target
from intarsia.planning.proof.tiling import tiling_fault

_Span = tuple[int, int, str]
"""The first byte, the one after the last, and what lies there."""


def check_arrangement(name: str, targets: Sequence[Target], arranged: Arrangement) -> None:
    """Raise where an element has no place or two, or where places overlap or leave their files."""
    fault = next(_faults(targets, arranged), None)
    if fault is not None:
        raise CoverageError(
            f"the format {name} lays out its files wrongly: {fault}",
            hint=f"fix `arrange` of the format {name}; nothing was written",
        )


def _faults(targets: Sequence[Target], arranged: Arrangement) -> Iterator[str]:
    spans = defaultdict[str, list[_Span]](list)
    tiled = set[tuple[Shape, tuple[Box, ...]]]()
    before: dict[Shape, tuple[Box, ...]] = {}
    for target in targets:
        if target.name not in arranged.slots:
            yield f"`{target.name}` has no place"
            continue
        slots = arranged.slots[target.name]
        shape, boxes = target.shape, tuple([slot.box for slot in slots])
        # Neighbours are cut alike as a rule: comparing boxes that are the same is quicker than hashing them.
        if before.get(shape) != boxes:
            before[shape] = boxes
            if (shape, boxes) not in tiled:
                if fault := tiling_fault(shape, boxes):
                    yield f"`{target.name}`: {fault}"
                tiled.add((shape, boxes))
        for slot in slots:
            # The bytes of its elements, those wrapped around them, and the gap before.
            start = first = slot.start_bytes
            end = last = start + prod(slot.box.shape) * target.dtype.itemsize
            if slot.wrapping is not None:
                first -= slot.wrapping.start_bytes
                last = first + slot.wrapping.length_bytes
            if not first <= start <= end <= last:
                yield f"`{target.name}` {slot.box} lies outside of what is wrapped around it"
            elif first - slot.gap_bytes != last:
                spans[slot.file].append((first - slot.gap_bytes, last, target.name))
    for file, start, data in arranged.fixed:
        spans[file].append((start, start + len(data), "a fixed part"))
    for file, held in spans.items():
        yield from _in_file(file, held, arranged.files.get(file))
    for file in arranged.closing.keys() & arranged.files.keys():
        yield f"{file} is written last, but it also holds tensors or fixed parts"


def _in_file(file: str, spans: list[_Span], size_bytes: int | None) -> Iterator[str]:
    spans.sort()
    if size_bytes is None:
        yield f"{file} holds `{spans[0][2]}`, and has no length"
    elif spans[0][0] < 0 or max(span[1] for span in spans) > size_bytes:
        first, last, what = min(spans) if spans[0][0] < 0 else max(spans, key=lambda s: s[1])
        yield f"bytes [{first:,}:{last:,}) of {file}, which has {size_bytes:,}: {what}"
    for (_, last, one), (start, end, other) in pairwise(spans):
        if start < last:
            yield f"bytes [{start:,}:{min(last, end):,}) of {file} are those of {one} and of {other}"
