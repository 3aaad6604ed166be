"""Tensors under the names that they are read by; most become values when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from intarsia.errors import FamilyError
from intarsia.format.complaint import Complain, Complaint
from intarsia.layout import Layout
from intarsia.mesh import Rule, Shape
from intarsia.planning.made_when_asked import MadeWhenAsked
from intarsia.planning.manifest import Logical, Stored
from intarsia.planning.whole_tensor import WholeTensor
from intarsia.state.names import parameter_of

StoredOrWhole = Stored | WholeTensor
"""A tensor as a format finds it, or as it is read: then one that is whole keeps its name, and its rule is yet to be asked."""

_ROWS, _WHOLE = Rule(tp=0), Rule()


def as_own_logical(s: Stored, cut: Rule | None) -> Stored:
    """A tensor as its own logical tensor; a mesh cuts its first axis, if no rule is given."""
    layout = s.layout
    if layout.tensors != (s.name,):
        layout = Layout.of(s.name, layout.shape)
    rule = cut or rule_of_rows(layout.shape)
    return Stored(s.name, s.dtype, layout, s.chunks, rule, s.key, s.value)


def rule_of_rows(shape: Shape) -> Rule:
    """How a mesh cuts an unknown tensor: its first axis, if it has several."""
    return _ROWS if len(shape) > 1 else _WHOLE


def as_stored(s: StoredOrWhole) -> Stored:
    """A tensor as it is found, as a value."""
    return s if isinstance(s, Stored) else s.stored()


def files_of_tensor(s: StoredOrWhole) -> tuple[str, ...]:
    """The files that hold a tensor."""
    if isinstance(s, WholeTensor):
        return (s.file,)
    return tuple(dict.fromkeys(chunk.file for chunk in s.chunks))


def unique(
    named: Iterable[tuple[str, StoredOrWhole]], where: str, complain: Complain
) -> dict[str, StoredOrWhole]:
    """Tensors by name; complain where two have the same."""
    found: dict[str, StoredOrWhole] = {}
    for name, s in named:
        if name in found:
            error = FamilyError(
                f"{found[name].key!r} and {s.key!r} are both `{name}`", at=where, tensors=(name,)
            )
            complain(Complaint(error, files_of_tensor(s)))
            continue
        found[name] = s
    return found


def as_values(
    found: Mapping[str, StoredOrWhole], rule_of: Callable[[WholeTensor], Rule]
) -> MadeWhenAsked[Stored]:
    """Tensors as values; `rule_of` gives those that are whole their rules."""
    return MadeWhenAsked(found, lambda s: s if isinstance(s, Stored) else s.stored(rule_of(s)))


def logical_of(
    stored: MadeWhenAsked[Stored], shapes: Mapping[str, Shape]
) -> MadeWhenAsked[Logical]:
    """The logical tensors that stored ones hold; `shapes` are those of a family."""
    if {*map(type, stored.held.values())} == {WholeTensor}:
        return MadeWhenAsked(stored.held, WholeTensor.logical)
    found: dict[str, WholeTensor | Logical] = {}
    made: dict[str, Logical] = {}
    for own, s in stored.held.items():
        if isinstance(s, WholeTensor):
            found.setdefault(own, s)
            continue
        layout = s.layout
        for name in layout.tensors or (own,):
            if name not in found:
                shape = layout.shape
                if name != own:
                    shape = shapes.get(parameter_of(name), shape)
                found[name] = made[name] = Logical(name, shape, s.dtype)
    return MadeWhenAsked(found, WholeTensor.logical, made)
