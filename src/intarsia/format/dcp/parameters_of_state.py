"""The parameters that an optimizer's states are of: by the names and numbers of its groups, or by its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from intarsia.errors import FormatError, IntarsiaError, SectionError
from intarsia.family import Table
from intarsia.format.dcp.metadata import Metadata
from intarsia.format.naming.find_sections import known_name_in
from intarsia.format.naming.section import TOP, may_be_trained
from intarsia.format.naming.sections import Sections, belongs
from intarsia.format.naming.wrappers import bare, without_wrappers
from intarsia.format.optimizer_state.numbered_state import (
    NumberedState,
    group_lists,
    names_of_numbers,
    parameters_by_number,
)
from intarsia.format.optimizer_state.optimizer_names import state_in, unnumbered_error
from intarsia.format.optimizer_state.whose_state import Parts
from intarsia.frozen import frozen
from intarsia.mesh import Shape
from intarsia.store.reading.folder import Folder


@frozen
class StateParameters:
    """The parameter of each number, and of each name that is a part's beside the model, and whether by order alone.

    `unclear` is why numbers are not known, `whose` why it is not known of which weights all the state is.
    """

    names: Mapping[str, str]
    by_order: bool = False
    unclear: IntarsiaError | None = None
    whose: IntarsiaError | None = None


def parameters_of_state(
    folder: Folder,
    metadata: Metadata,
    sections: Sections,
    table: Table | None,
    chosen: Collection[str],
) -> StateParameters:
    """The parameters of the states of the model's optimizer; `chosen` are the sections that the user names."""
    root = sections.optimizer
    if root is None:
        return StateParameters({})
    tensors = metadata.tensors
    every = [
        NumberedState(name, state.parameter, tensors[name].shape)
        for name, of in sections.state.items()
        if of == root and (state := state_in(name, root))
    ]
    states = [state for state in every if state.number.isdecimal()]
    by_name = len(states) < len(every)
    if by_name and TOP in chosen:  # the whole dict is read as it is, names of state too
        return StateParameters({})
    parts = _parts(metadata, sections, str(folder.root), asked=root.removesuffix(".") in chosen)
    if by_name:
        try:
            return StateParameters(parts.beside({s.number: s.number for s in every}, every))
        except SectionError as why:
            return StateParameters({}, whose=why)
    groups = group_lists(folder, metadata, root)
    if not states and not any(type(n) is int for g in groups for n in g.get("params") or ()):
        return StateParameters({})
    places = _places(metadata, sections)
    order = {sections.names[name]: tensors[name].shape for name in places}
    beside = [sections.names[name] for name, (part, _) in places.items() if part != parts.model]

    def named(name: str) -> str:
        plain = bare(name)
        if sections.foreign and plain.startswith(sections.foreign):
            return plain
        return without_wrappers(plain, order) or (known_name_in(plain, order) or ("", plain))[1]

    tied, given = table.tied if table else (), names_of_numbers(groups)
    try:
        if not given and len(groups) == 1:
            parts.refuse_two_orders(states, len(groups[0].get("params") or ()), tied)
        numbers = parts.beside(given, states)
        numbers = numbers or parameters_by_number(states, groups, order, named, tied, beside)
        return StateParameters(numbers, by_order=bool(states) and not given)
    except SectionError as why:
        return StateParameters({}, whose=why)
    except FormatError as why:
        unclear = unnumbered_error(why.brief, str(folder.root)) if states else None
        return StateParameters({}, unclear=unclear)


def _places(metadata: Metadata, sections: Sections) -> dict[str, tuple[str, str]]:
    """The part of each tensor that may be trained, among those that are read, and its name inside of that."""
    model, found = sections.label or TOP, dict[str, tuple[str, str]]()
    depth = len(sections.label.split("."))
    for key, path in metadata.paths.items():
        if key not in sections.names or not metadata.tensors[key].dtype.floating:
            continue
        if sections.is_models(key, path):
            found[key] = model, sections.names[key]
            continue
        words = [str(word) for word in path]
        at = max(1, min(depth, len(words) - 1))
        if _may_be_its(sections, part := ".".join(words[:at])):
            found[key] = part, bare(".".join(words[at:]))
    return found


def _may_be_its(sections: Sections, part: str) -> bool:
    """Whether the optimizer that is read may train a part: one with an optimizer of its own needs no other."""
    root = str(sections.optimizer)
    its = belongs(root, part)
    if not may_be_trained(part) or (belongs(root, sections.label) and not its):
        return False
    return not any(belongs(other, part) for other in sections.roots if other != root)


def _parts(metadata: Metadata, sections: Sections, where: str, *, asked: bool) -> Parts:
    """The parts of the saved dict; where the user named the optimizer, only those that are read."""
    model, tensors = sections.label or TOP, metadata.tensors
    held: dict[str, dict[str, Shape]] = {model: {}}
    for key, (part, name) in _places(metadata, sections).items():
        held.setdefault(part, {})[name] = tensors[key].shape
    apart = (
        {} if asked else {k: of for k, of in sections.others.items() if _may_be_its(sections, k)}
    )
    for label, of in apart.items():
        held[label] = {
            name: tensors[key].shape for key, name in of.items() if tensors[key].dtype.floating
        }
    return Parts(held, model, frozenset(apart), str(sections.optimizer), where)
