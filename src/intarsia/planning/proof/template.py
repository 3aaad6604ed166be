"""Tensors that differ by name alone: the copies into them are worked out once for all of them.

The planner counts copies and whoever moves bytes carries them out; both ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from intarsia.layout import Layout, Loop, Piece, by_tensor, clip
from intarsia.mesh import Box
from intarsia.planning.chunks import Chunks, boxes_of
from intarsia.planning.copy import Copy, copies_into
from intarsia.planning.manifest import Stored
from intarsia.planning.ranges import Ranges

MOST_BOXES = 1 << 15
"""Boxes whose copies are kept, over all templates of a manifest; those of more are worked out again."""

HeldOf = Callable[[Stored, Layout], Layout]

Recipe = tuple[tuple[int, int, Piece], ...]
"""For each copy the number of its source, that of the source's chunk, and the piece."""


class TemplateKind:
    """What templates share that differ by the first place of the source that they read alone.

    So do the experts of a layer that are one tensor.  `in_turn` are the copies into the whole that may move
    together with others, and the first place that they read, once they were looked for.
    """

    __slots__ = ("in_turn",)

    def __init__(self) -> None:
        self.in_turn: tuple[int, Recipe] | None = None


class Template:
    """The copies into each box of the tensors of one template; `held_of` is as in `copies_into`.

    `start` is the first place of the source that they read, `in_turn` those of the kind, from there on.
    """

    __slots__ = ("_held_of", "_in_order", "_kept", "_recipes", "in_turn", "kind", "start")

    def __init__(
        self, kept: list[Hashable], held_of: HeldOf, kind: TemplateKind, start: int
    ) -> None:
        self.kind = kind
        self.start = start
        self._recipes: dict[Hashable, Recipe] = {}
        self._kept = kept
        self._held_of = held_of
        self._in_order: InOrder | None = None
        self.in_turn: Recipe | None = None

    def copies(self, layout: Layout, box: Box, sources: tuple[Stored, ...]) -> list[Copy]:
        """Every copy from `sources` into the row-major buffer of `box` of a tensor with `layout`."""
        recipe = self._recipes.get((box.offsets, box.shape)) or self.recipe(layout, box, sources)
        return [Copy(sources[k], sources[k].chunks[n], piece) for k, n, piece in recipe]

    def recipe(self, layout: Layout, box: Box, sources: tuple[Stored, ...]) -> Recipe:
        """As `copies`, by the numbers of sources and chunks, which tensors of one template share."""
        key = box.offsets, box.shape
        recipe = self._recipes.get(key)
        if recipe is None:
            recipe = self._keep(key, _recipe(layout, box, sources, self._held_of))
        return recipe

    def stretch(
        self, layout: Layout, start: int, stop: int, sources: tuple[Stored, ...]
    ) -> list[Copy]:
        """As `copies`, into row-major elements `[start, stop)` of the tensor, counted from `start`."""
        recipe = self._recipes.get((start, stop))
        if recipe is None:
            if self._in_order is None:
                whole = Box.whole(layout.shape)
                found = _recipe(layout, whole, sources, self._held_of) if layout.size else ()
                self._in_order = InOrder(found)
            recipe = self._keep((start, stop), tuple(self._in_order.into(start, stop)))
        return [Copy(sources[k], sources[k].chunks[n], piece) for k, n, piece in recipe]

    def _keep(self, key: Hashable, recipe: Recipe) -> Recipe:
        if len(self._kept) < MOST_BOXES:
            self._kept.append(key)
            self._recipes[key] = recipe
        return recipe


class InOrder:
    """Copies by the first place that each fills, so that those into a range are found at once."""

    def __init__(self, recipe: Iterable[tuple[int, int, Piece]]) -> None:
        self._recipe = sorted(recipe, key=lambda copy: copy[2].to)
        self._starts = [piece.to for _, _, piece in self._recipe]
        self._stops = [piece.to + piece.flip().span + 1 for _, _, piece in self._recipe]
        self._ranges = Ranges(self._starts, self._stops)

    def into(self, start: int, stop: int) -> Iterator[tuple[int, int, Piece]]:
        """The copies into the places `[start, stop)`, counted from `start`."""
        near = self._ranges.near(start, stop)
        each = zip(self._recipe[near], self._starts[near], self._stops[near], strict=True)
        for (source, chunk, piece), first, end in each:
            pieces = [piece]
            if first < start or stop < end:
                pieces = [p.flip() for p in clip(piece.flip(), start, stop)]
            for p in pieces:
                yield source, chunk, Piece("", p.at, p.to - start, p.loops)


class Templates:
    """The templates of one manifest, and what they are known by."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Template] = {}
        self._kinds: dict[Hashable, TemplateKind] = {}
        self._boxes: dict[tuple[Box, ...], tuple[Box, ...]] = {}
        self._by_id: dict[Hashable, tuple[tuple[Box, ...], tuple[Box, ...]]] = {}
        self._held: dict[int, tuple[Stored, Mapping[str, Sequence[Piece]]]] = {}
        self._kept: list[Hashable] = []
        self._loops: dict[int, tuple[tuple[Loop, ...], tuple[Loop, ...]]] = {}
        self._equal_loops: dict[tuple[Loop, ...], tuple[Loop, ...]] = {}

    def of(self, layout: Layout, sources: tuple[Stored, ...]) -> Template:
        """The template of a tensor with `layout`, the same object for all that differ by name alone."""
        if len(sources) == 1 and sources[0].layout is layout and len(sources[0].chunks) == 1:
            box = sources[0].chunks[0].box
            key: Hashable = layout.shape, box.offsets, box.shape
        else:
            cuts = (id(self.boxes_of(s)) for s in sources)
            held = [None if s.layout == layout else self.held_of(s, layout) for s in sources]
            key = (self._pattern(layout, held), *cuts)
        found = self._known.get(key)
        if found is None:
            common, start = self._kind(key, layout, sources)
            kind = self._kinds.setdefault(common, TemplateKind())
            found = self._known[key] = Template(self._kept, self.held_of, kind, start)
        return found

    def _kind(
        self, key: Hashable, layout: Layout, sources: tuple[Stored, ...]
    ) -> tuple[Hashable, int]:
        """What templates share that read one chunk from different places on, and the first of these."""
        if len(sources) != 1 or len(sources[0].chunks) != 1 or sources[0].layout == layout:
            return key, 0
        held = self.held_of(sources[0], layout)
        start = min([p.at for p in held.pieces], default=0)
        pieces = [Piece(p.tensor, p.at - start, p.to, p.loops) for p in held.pieces]
        moved = Layout(held.shape, tuple(pieces))
        return (self._pattern(layout, [moved]), sources[0].chunks[0].box), start

    def held_of(self, stored: Stored, layout: Layout) -> Layout:
        """What a stored tensor holds of the tensors that a layout names: of 256 fused ones, say, two."""
        if len(stored.layout.pieces) <= len(layout.pieces):
            return stored.layout
        known = self._held.get(id(stored))
        if known is None:
            # Kept when it is whole: another thread takes what it finds for all there is.
            known = self._held[id(stored)] = stored, by_tensor(stored.layout)
        held = [piece for name in layout.tensors for piece in known[1].get(name, ())]
        return Layout(stored.layout.shape, tuple(sorted(held, key=attrgetter("at"))))

    def boxes_of(self, stored: Stored) -> tuple[Box, ...]:
        """The boxes of a tensor's chunks, the same object for all that are cut alike."""
        boxes = boxes_of(stored.chunks)
        ids = id(boxes) if isinstance(stored.chunks, Chunks) else tuple(map(id, boxes))
        known = self._by_id.get(ids)
        if known is None:
            # They are kept with their identities, so that no others come to have those.
            known = self._by_id[ids] = boxes, self._boxes.setdefault(boxes, boxes)
        return known[1]

    def number_of(self, loops: tuple[Loop, ...]) -> int:
        """The same for equal loops; layers share theirs, which are found without being looked at."""
        found = self._loops.get(id(loops))
        if found is None:
            # Both are kept, so that no others come to have their identities; threads agree on the first of equals.
            found = self._loops[id(loops)] = loops, self._equal_loops.setdefault(loops, loops)
        return id(found[1])

    def _pattern(self, layout: Layout, held: Sequence[Layout | None]) -> Hashable:
        """What two tensors of one template have in common, but for names, with what their sources hold of them.

        None stands for a source with the very layout, which is copied box by box.
        """
        if len(held) == 1 and held[0] is None:
            return layout.shape
        order: dict[str, int] = {}

        def numbered(x: Layout) -> Hashable:
            found: list[Hashable] = [x.shape]
            for p in x.pieces:
                found += order.setdefault(p.tensor, len(order)), p.at, p.to, self.number_of(p.loops)
            return tuple(found)

        return numbered(layout), *[x and numbered(x) for x in held]


def _recipe(layout: Layout, box: Box, sources: tuple[Stored, ...], held_of: HeldOf) -> Recipe:
    source = {id(stored): k for k, stored in enumerate(sources)}
    chunks = [{id(chunk): n for n, chunk in enumerate(stored.chunks)} for stored in sources]
    found = [(source[id(c.stored)], c) for c in copies_into(layout, box, sources, held_of)]
    return tuple((k, chunks[k][id(c.chunk)], c.piece) for k, c in found)
