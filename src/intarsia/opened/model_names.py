"""Whether Transformers finds the tensors of a checkpoint by their names.

It makes new weights in place of those that it does not find, so a folder that holds a model under
other names is whole and readable, and loads as a random model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from intarsia.errors import FamilyError, few
from intarsia.family import model_types, table_for
from intarsia.family.table import MEGATRON
from intarsia.format.complaint import Complain, Complaint
from intarsia.format.folder.adapters import is_adapter
from intarsia.format.naming.foreign_names import foreign_names
from intarsia.format.naming.logical_names import common_dtype, shape_fault
from intarsia.format.naming.named_tensors import files_of_tensor
from intarsia.format.naming.section import TOP
from intarsia.format.naming.wrappers import bare
from intarsia.format.registry import read_manifest
from intarsia.planning.manifest import Logical, Manifest, Stored
from intarsia.planning.problem import absences
from intarsia.state.names import is_state

if TYPE_CHECKING:
    from intarsia.family.from_transformers.model_names import ModelNames

_CONVERT = "`intarsia convert PATH OUT --to hf` writes the same tensors under the names of the hub"


def compared_with_model(
    src: Manifest, *, on_disk: bool = False, complain: Complain | None = None
) -> Manifest:
    """A manifest that names the tensors which Transformers would miss; raise where it would find none.

    The names are those that are read, or those `on_disk`: a section or a wrapper may be before these.
    With `complain`, so are tensors that it finds and that are not the model's, and what is beside a text
    part that a table knows is compared, too.
    """
    config = src.config
    if config is None or not config.get("model_type") or is_adapter(src):
        return src
    weights, tabled = [*_weights(src)], config["model_type"] in model_types()
    if tabled:
        if on_disk:
            check_hub_names((s.on_disk for s in weights), src, _CONVERT)
            _check_wrapped(src)
        table = table_for(config) if complain else None
        weights = [s for s in weights if table and table.is_beside_the_text(s.name)]
    names = [s.on_disk if on_disk else s.name for s in weights]
    if not names:
        return src
    from intarsia.family.from_transformers.model_names import ModelNames

    looked_for = {*names}
    looked_for |= {w.of for w in src.quantised.weights if w.main.name in looked_for}
    try:
        model = ModelNames.of(config, looked_for)
    except FamilyError as why:
        note = f"whether Transformers finds the tensors by their names was not checked: {why.brief}"
        return replace(src, notes=(*src.notes, note))
    taken = model.taken(looked_for)
    if not taken:
        if tabled:
            return src
        step = _CONVERT if on_disk and model.taken(s.name for s in weights) else _step(model, src)
        raise foreign_names(names, model.model.kind, src.path, step=step)
    parts = src.quantised.kind_of_part
    held = dict(zip(names, weights, strict=True))
    strange = [name for name, s in held.items() if name not in taken and s.name not in parts]
    notes, absent = list[str](), tuple[Logical, ...]()
    if not tabled and model.are_below_its_word(taken):
        word = model.model.base
        notes.append(
            f"`{word}.` stands before the names of all that {model.model.kind} has: Transformers takes it"
            f" off, and others may not; --section {word} (section= in Python) does too"
        )
    if strange and not tabled:
        notes.append(
            f"not names of Transformers' {model.model.kind}, carried name by name: {few(strange, 4)}"
        )
    if not src.quantised and (tabled or table_for(config) is None):
        try:
            missing, made_new = _missing(model, taken, weights, src)
            if complain is not None:
                _complain_of_others(model, held, strange, src, complain)
        except FamilyError as why:
            notes.append(
                f"whether all that Transformers needs is stored was not checked: {why.brief}"
            )
        else:
            absent = missing
            notes += made_new
    problems, said = (*src.problems, *absences(absent)), (*src.notes, *notes)
    return replace(src, absent=(*src.absent, *absent), problems=problems, notes=said)


def _missing(
    model: ModelNames, taken: dict[str, str], weights: Sequence[Stored], src: Manifest
) -> tuple[tuple[Logical, ...], list[str]]:
    """Tensors that Transformers would miss, and a note on those that it makes new in any case.

    A table says itself what its text part needs.
    """
    table = table_for(src.config)
    known = table.known if table else ()
    lost, others = model.missing(taken)
    dtype = common_dtype(weights)
    absent = tuple(Logical(name, shape, dtype) for name, shape in lost.items() if name not in known)
    made_new = [name for name in others if name not in known]
    note = f"not stored, so that Transformers makes new ones for {model.model.kind}: {few(made_new, 4)}"
    return absent, [note] if made_new else []


def _complain_of_others(
    model: ModelNames,
    held: Mapping[str, Stored],
    strange: Sequence[str],
    src: Manifest,
    complain: Complain,
) -> None:
    """Tell of tensors whose shape is not the model's, and of layers that it does not have."""
    kind, about = model.model.kind, "the configuration is another model's, or the tensor is damaged"
    for name, want in model.misshapen({name: s.shape for name, s in held.items()}):
        s = held[name]
        error = FamilyError(
            f"`{name}` has shape {list(s.shape)}, config.json gives {kind} {list(want)}",
            at=src.path,
            hint=about,
            kind=shape_fault(name, s.shape, want),
            tensors=(name,),
        )
        complain(Complaint(error, files_of_tensor(s), s.layout.tensors))
    beyond = [*model.beyond(strange, [name for name in held if name not in strange])]
    if beyond:
        text = f"{len(beyond):,} tensors are of layers that config.json does not give {kind}: {few(beyond)}"
        error = FamilyError(text, at=src.path, tensors=tuple(beyond))
        files = dict.fromkeys(file for name in beyond for file in files_of_tensor(held[name]))
        complain(Complaint(error, tuple(files), tuple(beyond)))


def check_hub_names(names: Iterable[str], src: Manifest, step: str) -> None:
    """Raise where a family has a table, and none of the names is one that it has on the hub or in Transformers."""
    table, strange = table_for(src.config), list[str]()
    if table is None:
        return
    rows = [held for dialect, held in table.dialects.items() if dialect not in MEGATRON]
    for name in names:
        if any(name in held for held in rows):
            return
        strange.append(name)
    if strange and not any(
        w.of in held for w in src.quantised.weights if w.main.name in strange for held in rows
    ):
        raise foreign_names(strange, table.family, src.path, step=step)


def _check_wrapped(src: Manifest) -> None:
    """Raise where wrappers stand in some names of a family with a table, by which Transformers misses these."""
    table, weights = table_for(src.config), [*_weights(src)]
    if table is None:
        return
    known = {n for d, held in table.dialects.items() if d not in MEGATRON for n in held}
    lost = [s.on_disk for s in weights if s.on_disk not in known and s.name in known]
    if lost:
        raise foreign_names(lost, table.family, src.path, step=_CONVERT, of=len(weights))


def _weights(src: Manifest) -> Iterator[Stored]:
    return (s for s in src.stored.values() if not is_state(s.name))


def _step(model: ModelNames, src: Manifest) -> str:
    """Which section holds names of the model, if one does."""
    whole = read_manifest(src.given or src.path, src.config, section=TOP) if src.section else src
    found = model.sections([bare(s.on_disk) for s in _weights(whole)])
    if len(found) == 1:
        (name,) = found
        text = f"the names below {name!r} are the model's: convert with --section {name}"
        return f"{text} (section= in Python)"
    listed = [f"{name} ({count} tensors)" for name, count in found.items()]
    how = "names of the model are below several words: choose one with --section"
    return f"{how} (section= in Python): {few(listed, 8)}" if found else ""
