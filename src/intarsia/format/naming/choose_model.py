"""Which section of a state dict is the model: the one with a framework's own name, the only one, or the user's choice."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from intarsia.errors import SectionError, UsageError, few
from intarsia.format.naming.section import TOP, Paths, Section, TensorHeader
from intarsia.format.naming.wrappers import bare


def explained_model(
    found: Sequence[Section], where: str, paths: Paths
) -> tuple[Section, list[Section]]:
    """The section with a framework's own name, or the only one that holds its names, and other models.

    Another model holds all names that the model does, or has the word for one; what has some of them
    is carried name by name.
    """
    own = [s for s in found if s.own]
    among = own or [s for s in found if not any(s.lies_in(o) for o in found)]
    rivals = [s for s in among if not own or any(s.rivals(o) for o in among)]
    if len(rivals) > 1:
        raise _several(rivals, where)
    model = max(among, key=lambda s: len(s.names), default=Section(""))
    rest = [s for s in found if not s.own] if own else []
    names = {name for s in own for name in s.unwrapped} if rest else set()
    others = [s for s in rest if s.unwrapped.keys() >= names or _is_other(s, paths)]
    return model, others


def _is_other(section: Section, paths: Paths) -> bool:
    """Whether a key of the nested dict that was saved calls a section one of several models."""
    return section.called_other and any(len(paths.get(key, ())) > 1 for key in section.names)


def model_of(found: Sequence[Section], where: str, paths: Paths) -> tuple[Section, list[Section]]:
    """The section that is the model, and those that are other models; raise where several may be it."""
    named = [s for s in found if s.label]
    own = [s for s in named if s.own]
    # Where a model has no section, that name is its own.
    whole = f", or carry all under their full names with --section {TOP}"
    carried = "" if any(not s.label and _is_model(s, found) for s in found) else whole
    if len(own) == 1:
        (model,) = own
        shared = [s for s in found if s is not model and s.overlaps(model)]
        others = [s for s in shared if model.within(s) or _is_other(s, paths)]
        if unclear := [s for s in shared if s not in others and s.rivals(model)]:
            raise _several([model, *unclear], where, carried)
        return model, others
    if rivals := [s for s in found if any(s.rivals(o) for o in found)]:
        raise _several(rivals, where, carried)
    alone = len(found) == 1 and len(named) == 1 and any("." in name for name in named[0].held)
    return (named[0] if alone else Section("")), []


def _is_model(loose: Section, found: Collection[Section]) -> bool:
    """Whether tensors without a section may be a model's: single numbers and the like beside sections are not."""
    alone = all(section is loose for section in found)
    dotted = any("." in name for name in loose.held)
    return alone or dotted or any(loose.rivals(section) for section in found)


def _several(rivals: Sequence[Section], where: str, carried: str = "") -> SectionError:
    listed = "".join(f"\n  {section}" for section in rivals)
    return SectionError(
        f"{len(rivals)} sections may be the model{listed}",
        at=where,
        hint=f"choose one with --section {rivals[0].label or TOP} (section= in Python){carried}",
    )


def chosen_model(
    wanted: Sequence[str],
    found: Mapping[str, Section],
    tensors: Mapping[str, TensorHeader],
    roots: Sequence[str],
    where: str,
) -> tuple[Section, list[Section]]:
    """The section that the user names; all others are left out. `roots` are those of optimizers."""
    if len(wanted) > 1:
        raise UsageError(
            f"{len(wanted)} sections are named, {' and '.join(wanted)}, but only one can be the model",
            hint="name the section of the model and, after a comma, that of its optimizer",
        )
    name = "" if wanted[0] == TOP else wanted[0].strip(".")
    by_label = {s.label: s for s in found.values()}
    below = [s for s in by_label.values() if s.label.startswith(f"{name}.")]
    model = by_label.get(name)
    if model is not None and not name and not _is_model(model, by_label.values()):
        model = None
    if model is None and len(below) > 1:
        raise _several(below, where)
    if model is None and below:
        model = below[0]
    if model is None:
        model = Section(name)
        prefix = f"{name}." if name else ""
        for key, tensor in tensors.items():
            if bare(key).startswith(prefix):
                model.add(key, bare(key).removeprefix(prefix), prefix, tensor)
        for section in by_label.values():
            section.names = {k: v for k, v in section.names.items() if k not in model.names}
    if not model.names and (name or tensors or not roots):
        labels = {s.label or TOP for s in by_label.values()}
        there = sorted(labels or {bare(key).partition(".")[0] for key in tensors or roots})
        raise SectionError(
            f"{where} has no section {wanted[0]!r}", hint=f"its sections: {few(there, 8)}"
        )
    others = [s for s in by_label.values() if s is not model and s.names]
    if not name:  # what is no other model goes along: counters, places in the data
        others = [
            s for s in others if s.overlaps(model) or s.rivals(model) or s.called_other or s.own
        ]
    return model, others
