"""The four links of the proof, each checked once for every template of shapes.

a file's bytes → a stored tensor    its chunks tile it, and each is long enough for its box
stored tensors → a logical tensor   together they hold each of its elements once
logical tensors → a target          each of its places is for at most one element, which exists
a target → what is written          its boxes tile it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from intarsia.errors import few
from intarsia.frozen import frozen
from intarsia.layout import Layout, Piece, cover, tally, unravel
from intarsia.mesh import Box, Shape
from intarsia.planning.chunks import columns_of
from intarsia.planning.manifest import Manifest, Stored, Target
from intarsia.planning.proof.stored_as_is import (
    in_one_chunk,
    is_one_chunk,
    is_whole,
    runs_of_files,
    whole_in_columns,
)
from intarsia.planning.proof.template import Templates
from intarsia.planning.proof.tiling import TilingFault, tiling_fault
from intarsia.planning.whole_tensor import WholeTensor
from intarsia.value import Value


@frozen
class Gap:
    """A fault that forbids the move: elements without a source, with two, or that nothing takes.

    `kind` is what `verify` calls it, `hint` what to do where that is not the usual for its kind.
    """

    tensor: str
    elements: int
    text: str
    kind: str = "elements-missing"
    hint: str = ""


class Links:
    """What is wrong with the links between the files of a manifest and what is wanted of it."""

    def __init__(self, src: Manifest, templates: Templates) -> None:
        self.src = src
        self._templates = templates
        self._tilings: dict[tuple[Shape, int], tuple[Sequence[Box], TilingFault | None]] = {}
        self._stored: dict[int, tuple[Stored, Gap | None]] = {}
        self._sizes: dict[int, tuple[tuple[Box, ...], Sequence[int]]] = {}
        self._tensors: dict[str, tuple[Gap, ...]] = {}
        self._places: dict[int, tuple[Layout, int]] = {}
        self._counts: dict[Any, tuple[int, int]] = {}

    @cached_property
    def whole(self) -> Mapping[str, WholeTensor]:
        """The logical tensors that are runs of files as they are, and that nothing else holds elements of."""
        return runs_of_files(self.src)

    @cached_property
    def in_columns(self) -> Mapping[str, Stored]:
        """The logical tensors that are stored ones as they are, which nothing else holds elements of and whose chunks,
        in columns, nothing is wrong with."""
        return whole_in_columns(self.src, self.tiling)

    def stored_fault(self, stored: Stored) -> Gap | None:
        """What is wrong with the chunks of a stored tensor."""
        if is_one_chunk(stored):
            return None
        known = self._stored.get(id(stored))
        if known is None:
            known = self._stored[id(stored)] = stored, self._stored_fault(stored)
        return known[1]

    def _stored_fault(self, stored: Stored) -> Gap | None:
        name, size = stored.on_disk, stored.dtype.itemsize
        tensor = next(iter(stored.layout.tensors), stored.name)
        boxes = self._templates.boxes_of(stored)
        fault = self.tiling(stored.shape, boxes)
        if fault is not None:
            outside = "chunks-overlap" if fault.overlap else "chunk-mismatch"
            kind = "elements-missing" if fault.missing else outside
            text = f"the chunks of `{name}` do not tile it: {fault}"
            return Gap(tensor, fault.missing, text, kind)
        _, _, lengths = columns_of(stored.chunks)
        for number, count in enumerate(self._sizes_of(boxes)):
            if lengths[number] < count * size:
                chunk = stored.chunks[number]
                text = (
                    f"chunk {chunk.box} of `{name}` needs {chunk.box.size * size:,} bytes,"
                    f" {chunk.length_bytes:,} are stored at byte {chunk.start_bytes:,} of {chunk.file}"
                )
                return Gap(tensor, chunk.box.size, text, "chunk-mismatch")
        return next(self._part_faults(name, stored.value, stored.layout), None)

    def _sizes_of(self, boxes: tuple[Box, ...]) -> Sequence[int]:
        """The elements of each box; `boxes` are the one object for all that are cut alike."""
        held = self._sizes.get(id(boxes))
        if held is None:
            held = self._sizes[id(boxes)] = boxes, [box.size for box in boxes]
        return held[1]

    def _part_faults(self, name: str, value: Value, layout: Layout) -> Iterator[Gap]:
        """What is wrong with the parts that a value needs: one that is not there, or not for each element."""
        for each in value.parts:
            tensor = next(iter(layout.tensors), name)
            part = self.src.parts.get(each)
            if part is None:
                text = f"`{name}` is {value}, and its part `{each}` is not there"
                yield Gap(tensor, layout.mapped, text)
                continue
            if (fault := self.stored_fault(part)) is not None:
                yield replace(fault, tensor=tensor)
            found = cover(layout, [part.layout])
            if lost := found.wanted - found.covered:
                text = f"`{each}` has nothing for {lost:,} of {found.wanted:,} elements of `{name}`"
                yield Gap(tensor, lost, text)
            elif found.doubled:
                text = f"`{each}` has two numbers for {found.doubled:,} elements of `{name}`"
                yield Gap(tensor, found.doubled, text, "chunks-overlap")

    def tensor_faults(self, name: str) -> tuple[Gap, ...]:
        """What is wrong with a logical tensor: with the stored ones that hold it, or between them."""
        found = self._tensors.get(name)
        if found is None:
            if name in self.whole or name in self.in_columns:
                return ()
            if in_one_chunk(self.src, name) is not None:
                return ()
            sources = self.src.sources.get(name, ())
            faults = [fault for s in sources if (fault := self.stored_fault(s)) is not None]
            found = self._tensors[name] = (*faults, *self.held_faults(name))
        return found

    def held_faults(self, name: str) -> Iterator[Gap]:
        """Elements of a logical tensor that its sources hold not at all, or more than once."""
        sources = self.src.sources.get(name, ())
        if is_whole(self.src.logical[name].shape, sources):
            return
        yield from (fault for s in sources for fault in self._place_faults(s.key, s.layout))
        logical = self.src.logical[name]
        size, held = logical.size, self._pieces.get(name, [])
        covered, doubled = self._count([(p.to, p.loops) for p in held], _tally_to)
        end = max([p.to + p.flip().span + 1 for p in held], default=0)
        if covered == size and not doubled and end <= size:
            return
        by = few([s.on_disk for s in sources], 4)
        by = f"; held by {by}" if by else ""
        if end > size:
            text = f"element {end - 1:,} of `{name}` is stored, which has {size:,} elements"
            yield Gap(name, end - size, text + by, "chunks-overlap")
            return
        found = cover(Layout.of(name, logical.shape), [s.layout for s in sources])
        if found.first_missing is not None:
            at = list(unravel(found.first_missing[1], logical.shape))
            text = f"{size - covered:,} of {size:,} elements of `{name}` have no source"
            yield Gap(name, size - covered, f"{text}; first missing: {name}{at}{by}")
        if found.first_doubled is not None:
            at = list(unravel(found.first_doubled[1], logical.shape))
            text = f"{doubled:,} elements of `{name}` have more than one source; first: {name}{at}"
            yield Gap(name, doubled, text + by, "chunks-overlap")

    def target_faults(self, target: Target, sources: tuple[Stored, ...]) -> Iterator[Gap]:
        fault = self.tiling(target.shape, target.boxes)
        if fault is not None:
            text = f"the parts of `{target.name}` do not tile it: {fault}"
            yield Gap(target.name, fault.missing, text)
        layout, logical = target.layout, self.src.logical
        names, known = layout.tensors, True
        for name in names:
            if name in logical:
                yield from self.tensor_faults(name)
            else:
                known = False
        one = sources[0].layout if len(sources) == 1 and known else None
        if one is not None and (one is layout or one == layout):
            return
        if len(layout.pieces) == 1 and layout.pieces[0].run and known:
            (piece,) = layout.pieces
            size = logical[piece.tensor].size
            if piece.to + piece.run <= size and piece.at + piece.run <= layout.size:
                return
        yield from self._place_faults(target.name, layout)
        ends = ((p.tensor, p.to + (p.run or p.flip().span + 1)) for p in layout.pieces)
        if not known or any(end > logical[name].size for name, end in ends):
            yield from self._absent(target, sources)

    def _absent(self, target: Target, sources: tuple[Stored, ...]) -> Iterator[Gap]:
        """Elements that a target asks for and no logical tensor has."""
        logical = self.src.logical
        held = [tuple(p for p in s.layout.pieces if p.tensor in logical) for s in sources]
        known = [replace(s.layout, pieces=x) for s, x in zip(sources, held, strict=True)]
        found = cover(target.layout, known)
        lost = found.wanted - found.covered
        if found.first_missing is not None:
            tensor, element = found.first_missing
            x = logical.get(tensor)
            at = list(unravel(element, x.shape)) if x and element < x.size else [element]
            text = f"{lost:,} of {found.wanted:,} elements of `{target.name}` have no source"
            yield Gap(target.name, lost, f"{text}; first missing: {tensor}{at}")

    def _place_faults(self, name: str, layout: Layout) -> Iterator[Gap]:
        """Places of a layout that are for more than one element, or lie beyond it."""
        known = self._places.get(id(layout))
        if known is None:
            pieces = layout.pieces
            beyond = max([p.at + p.span + 1 for p in pieces], default=0) - layout.size
            _, twice = self._count([(p.at, p.loops) for p in pieces], _tally_at)
            known = self._places[id(layout)] = layout, max(twice, beyond, 0)
        if wrong := known[1]:
            text = f"{wrong:,} places of `{name}` belong to two elements each, or are outside of it"
            yield Gap(next(iter(layout.tensors)), wrong, text, "chunks-overlap")

    def _count(
        self, pieces: Sequence[tuple[int, Any]], count: Callable[[Any], tuple[int, int]]
    ) -> tuple[int, int]:
        key = (count, *pieces)
        found = self._counts.get(key)
        if found is None:
            found = self._counts[key] = count(pieces)
        return found

    def tiling(self, shape: Shape, boxes: Sequence[Box]) -> TilingFault | None:
        if len(boxes) == 1 and boxes[0].shape == shape and not any(boxes[0].offsets):
            return None
        # The boxes are kept with the answer, so that no others come to have their identity.
        held = self._tilings.get((shape, id(boxes)))
        if held is None:
            held = self._tilings[shape, id(boxes)] = boxes, tiling_fault(shape, boxes)
        return held[1]

    @cached_property
    def _pieces(self) -> Mapping[str, list[Piece]]:
        """What is stored of each logical tensor."""
        found: dict[str, list[Piece]] = {}
        for stored in self.src.stored.values():
            for piece in stored.layout.pieces:
                found.setdefault(piece.tensor, []).append(piece)
        return found


def _tally_to(pieces: Iterable[tuple[int, Any]]) -> tuple[int, int]:
    return tally([Piece("", 0, to, loops).flip() for to, loops in pieces])


def _tally_at(pieces: Iterable[tuple[int, Any]]) -> tuple[int, int]:
    return tally([Piece("", at, 0, loops) for at, loops in pieces])
