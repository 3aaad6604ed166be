"""Targets that differ by name alone: what is proven of one is proven of all of them.

No link of a proof looks at what a name says.  So a target is proven where a renaming of tensors turns
it into a proven one, together with all that the proof rests on:

    the target                its layout and its boxes
    the one stored tensor     its layout, element type and value, and the boxes of its chunks; that nothing
    that holds all of it      is wrong with it is asked for each
    the logical tensors       their shapes
    of that stored tensor

The layers of a model are alike in all of that, and 28,000 targets of 36 layers come down to 770 proofs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from operator import attrgetter
from typing import Any

from intarsia.mesh import Box
from intarsia.planning.manifest import Manifest, Stored, Target
from intarsia.planning.proof.links import Links
from intarsia.planning.proof.template import Template, Templates

_AT, _TO, _LOOPS = attrgetter("at"), attrgetter("to"), attrgetter("loops")


class _Kind:
    """Stands for all stored tensors that differ by name alone."""

    __slots__ = ()


class ProvenTargets:
    """The proven targets of one manifest, found by those that differ from them by name alone."""

    def __init__(self, src: Manifest, links: Links, templates: Templates) -> None:
        self._src = src
        self._links = links
        self._templates = templates
        self._kinds: dict[Hashable, list[tuple[_Kind, list[Any]]]] = {}
        self._numbers: dict[int, tuple[Stored, _Kind | None, Mapping[str, int]]] = {}
        self._proven: dict[Hashable, tuple[tuple[Box, ...], Template]] = {}

    def key(self, target: Target, sources: tuple[Stored, ...]) -> Hashable:
        """The same for all targets that differ by name alone; None where a target is proven by itself."""
        if len(sources) != 1:
            return None
        stored, layout, boxes = sources[0], target.layout, id(target.boxes)
        if len(stored.layout.pieces) < 2:  # to look for its like takes longer than to prove it
            return None
        found = self._numbers.get(id(stored))
        if found is None:
            # The stored tensor is kept with the answer, so that no other comes to have its identity.
            found = self._numbers[id(stored)] = stored, *self._numbered(stored)
        _, kind, numbers = found
        if kind is None:
            return None
        if layout is stored.layout:
            return kind, boxes
        key: list[Hashable] = [kind, boxes, layout.shape]
        for p in layout.pieces:
            number = numbers.get(p.tensor)
            if number is None:  # of a tensor that nothing holds
                return None
            key += number, p.at, p.to, self._templates.number_of(p.loops)
        return tuple(key)

    def proven(self, key: Hashable) -> Template | None:
        """The template of the targets of a key, where one of them is proven."""
        found = self._proven.get(key)
        return None if found is None else found[1]

    def add(self, key: Hashable, boxes: tuple[Box, ...], template: Template) -> None:
        """Say that a target of a key is proven; its boxes are kept, as their identity is in the key."""
        self._proven[key] = boxes, template

    def _numbered(self, stored: Stored) -> tuple[_Kind | None, Mapping[str, int]]:
        """The kind of a stored tensor, None where it has faults, and the number of each tensor in it."""
        if self._links.stored_fault(stored) is not None:
            return None, {}
        layout, logical = stored.layout, self._src.logical
        numbers = {name: k for k, name in enumerate(layout.tensors)}
        shapes = [logical[name].shape if name in logical else None for name in numbers]
        pieces = layout.pieces
        places = [[*map(_AT, pieces)], [*map(_TO, pieces)], [*map(_LOOPS, pieces)]]
        order = [numbers[p.tensor] for p in pieces]
        held = [places, order, shapes, stored.dtype, stored.value]
        same = self._kinds.setdefault((layout.shape, id(self._templates.boxes_of(stored))), [])
        kind = next((kind for kind, other in same if other == held), None)
        if kind is None:
            kind = _Kind()
            same.append((kind, held))
        return kind, numbers
