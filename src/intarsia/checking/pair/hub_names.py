"""Two checkpoints of one model under one spelling: the hub's names and fusions.

A family's table knows the names of its text part alone.  Of any other model, and of what lies beside
the text part, such as a vision tower, the rules of the installed Transformers tell which tensors of
the hub a tensor of the module is made of: it is then held as those.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from intarsia.errors import FamilyError, LayoutError
from intarsia.family import table_for
from intarsia.layout import Layout
from intarsia.mesh import Shape
from intarsia.planning.manifest import Logical, Manifest
from intarsia.state.names import like, parameter_of

if TYPE_CHECKING:
    from intarsia.family.from_transformers.skeleton import Skeleton


def in_one_spelling(a: Manifest, b: Manifest) -> tuple[Manifest, Manifest, tuple[str, ...]]:
    """Both under the hub's names of what one of them alone has a name of, and what is said of it."""
    config = a.config or b.config
    table = table_for(config)
    known = table.logical if table else {}
    apart = tuple(
        [n for n in held.logical if n not in other.logical and parameter_of(n) not in known]
        for held, other in ((a, b), (b, a))
    )
    if not all(apart) or not config:
        return a, b, ()
    notes = []
    with suppress(FamilyError):  # without rules there is one spelling
        from intarsia.family.from_transformers.skeleton import Skeleton

        model, sides = Skeleton.of(config), []
        for side, held, names in zip("AB", (a, b), apart, strict=True):
            found = _under_hub_names(model, held, names)
            sides.append(found)
            if new := [n for n in found.logical if n not in held.logical]:
                old = [n for n in held.logical if n not in found.logical]
                notes.append(
                    f"{len(old)} tensors of {side} have other names than on the hub: by"
                    f" Transformers' rules `{old[0]}` is what the hub has as `{new[0]}`; the roots"
                    " of their digests differ"
                )
        return sides[0], sides[1], tuple(notes)
    return a, b, ()


def _under_hub_names(model: Skeleton, held: Manifest, names: Collection[str]) -> Manifest:
    """A checkpoint with some of its tensors held as the hub's tensors that they are made of."""
    quantised = {part.name for weight in held.quantised.weights for part in weight.parts}
    moved: dict[str, Layout] = {}
    shapes: dict[str, Shape] = {}
    on_hub, shape_of = _as_on_hub(model, held, [n for n in names if n not in quantised])
    for name in names:
        layout, new, shape = on_hub.get(parameter_of(name)), like(name), held.logical[name].shape
        if layout is None or not _is_one_stored_tensor(held, name):
            continue
        if layout.shape == shape:
            moved[name] = layout.rename(new)
            shapes |= {new(n): shape_of[n] for n in layout.tensors}
        elif len(layout.tensors) == 1:  # a counter of the parameter
            moved[name] = Layout.of(new(layout.tensors[0]), shape)
            shapes[new(layout.tensors[0])] = shape
    while broken := _not_whole(held, moved, shapes):
        moved = {n: x for n, x in moved.items() if broken.isdisjoint(x.tensors)}
    if not moved:
        return held
    stored = {
        key: replace(s, layout=moved[names[0]])
        if (names := s.layout.tensors) and names[0] in moved
        else s
        for key, s in held.stored.items()
    }
    new_ones = {
        n: Logical(n, shapes[n], held.logical[name].dtype)
        for name, layout in moved.items()
        for n in layout.tensors
    }
    kept = {n: x for n, x in held.logical.items() if n not in moved}
    return replace(held, stored=stored, logical=kept | new_ones)


def _as_on_hub(
    model: Skeleton, held: Manifest, names: Iterable[str]
) -> tuple[dict[str, Layout], Mapping[str, Shape]]:
    """The tensors of other names that are one tensor of the module, as they lie in the hub's; and the shapes of those.

    A tied tensor is not on the hub: it has its name in the module.
    """
    from intarsia.family.from_transformers.rules import rows_of_skeleton, shapes_on_disk

    weights = {of: held.logical[of].shape for of in map(parameter_of, names) if of in held.logical}
    rows, hub, shapes = dict[str, Layout](), dict[str, Layout](), dict[str, Shape]()
    with suppress(FamilyError, LayoutError):  # parts of a fused tensor are absent: it is the hub's
        rows = rows_of_skeleton(model, weights)
    with suppress(FamilyError):  # the module's own names serve as well
        shapes = shapes_on_disk(model)
        hub = {n: x for n, x in rows_of_skeleton(model, shapes).items() if n not in model.tied}
    found: dict[str, Layout] = {}
    for module in sorted(rows, key=lambda n: n in model.tied):
        row = rows[module]
        (name,) = row.tensors if len(row.tensors) == 1 else ("",)
        if name and name not in found and row == Layout.of(name, weights[name]):
            layout = hub.get(module, Layout.of(module, row.shape))
            found[name] = layout if layout.shape == row.shape else row
    found = {name: layout for name, layout in found.items() if layout.tensors != (name,)}
    return found, {**model.shapes, **shapes}


def _is_one_stored_tensor(held: Manifest, name: str) -> bool:
    """Whether a logical tensor is one stored tensor, as it is."""
    stored = held.sources.get(name, ())
    return len(stored) == 1 and stored[0].layout == Layout.of(name, held.logical[name].shape)


def _not_whole(
    held: Manifest, moved: Mapping[str, Layout], shapes: Mapping[str, Shape]
) -> frozenset[str]:
    """Tensors of the hub that are not all there, have several element types, or are there already."""
    sizes, types = dict.fromkeys(shapes, 0), dict[str, set[str]]()
    for name, layout in moved.items():
        for piece in layout.pieces:
            sizes[piece.tensor] += piece.size
            types.setdefault(piece.tensor, set()).add(held.logical[name].dtype.name)
    return frozenset(
        n
        for n, kinds in types.items()
        if sizes[n] != prod(shapes[n]) or len(kinds) > 1 or (n in held.logical and n not in moved)
    )
