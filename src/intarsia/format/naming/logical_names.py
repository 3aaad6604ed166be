"""From names on disk to logical tensors: families, and what none explains.

A checkpoint's tensors are divided into sections, and those of the model matched against the table
of its family.  What the table does not know is carried name by name, and said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from dataclasses import replace
from math import prod
from typing import Any

from intarsia.dtypes import BY_NAME
from intarsia.errors import FamilyError, IntarsiaError, few
from intarsia.family import RowsOfDialects, Table, table_for
from intarsia.family.optional_parts import must_be_there
from intarsia.format.complaint import Complain, Complaint, refuse
from intarsia.format.naming.flat_parameters import flat_parameters, refuse_flat, what_they_are
from intarsia.format.naming.foreign_names import refuse_foreign
from intarsia.format.naming.named_tensors import (
    StoredOrWhole,
    as_own_logical,
    as_stored,
    as_values,
    files_of_tensor,
    logical_of,
    rule_of_rows,
    unique,
)
from intarsia.format.naming.quantised_names import PartRules, packed_misfits, stood_for
from intarsia.format.naming.sections import Sections, divide
from intarsia.format.naming.spelling import Spelling
from intarsia.format.naming.wrappers import bare
from intarsia.format.optimizer_state.optimizer_names import (
    is_numbered_name,
    state_in,
    unnumbered_error,
)
from intarsia.format.optimizer_state.single_numbers import kinds_of_numbers
from intarsia.frozen import frozen_open
from intarsia.layout import Layout
from intarsia.mesh import Rule, Shape
from intarsia.planning.inventory import InventoryItem
from intarsia.planning.manifest import Logical, Stored
from intarsia.planning.problem import Problem, absences
from intarsia.planning.whole_tensor import WholeTensor
from intarsia.quantised import QuantisedWeights, find_quantised
from intarsia.state.names import MASTER, StateName, is_state, of_kind, state_among
from intarsia.value import PLAIN

SIDE_FOLDER = "optimizer/"
_VOCABULARY = ("embed_tokens.weight", "lm_head.weight", "shared_head.head.weight")


@frozen_open
class Named:
    """Stored tensors with their layouts, and what their names say."""

    stored: Mapping[str, Stored]
    logical: Mapping[str, Logical]
    family: str | None
    absent: tuple[Logical, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    quantised: QuantisedWeights
    inventory: tuple[InventoryItem, ...] = ()
    unclear: IntarsiaError | None = None


def name_tensors(
    tensors: Mapping[str, StoredOrWhole] | Iterable[StoredOrWhole],
    config: Mapping[str, Any] | None,
    where: str,
    complain: Complain = refuse,
    modelopt: Mapping[str, Any] | None = None,
    *,
    sections: Sections | None = None,
    section: Sequence[str] = (),
    numbers: Mapping[str, str] | None = None,
) -> Named:
    """Give the model's stored tensors (each its own layout, so far) the layouts of their family.

    `sections` says which those are, where the caller divided them; `numbers` are the parameters of
    numbered states.
    """
    if not isinstance(tensors, Mapping):
        tensors = unique(((s.name, s) for s in tensors), where, complain)
    listed = [*tensors.values()]
    table = table_for(config)
    if sections is None:
        sections = divided(tensors, config, where, section)
    spelled = Spelling(sections, table, numbers or {}).of_all(listed)
    weights = tensors if spelled is listed else {s.name: s for s in spelled}
    states = [s for s in spelled if is_state(s.name)] if state_among(weights) else []
    _mistakable(states, sections, table, where, complain)
    if states:
        weights = {name: s for name, s in weights.items() if not is_state(name)}
    quantised = find_quantised(weights, config, modelopt)
    flat = flat_parameters(weights)
    if table is None:
        rules = PartRules(quantised, None)
        plainly = (
            (s.name, s if isinstance(s, WholeTensor) else as_own_logical(s, rules.get(s.name)))
            for s in spelled
        )
        stored = as_values(unique(plainly, where, complain), _rule_of(rules, None))
        model_type = str((config or {}).get("model_type") or "")[:80]
        why = "no model configuration" + (" is used" if config == {} else "")
        why = f"model_type {model_type!r} has no table" if model_type else why
        note = f"{why}: each stored tensor is carried name by name, as its own logical tensor"
        notes = (note, *quantised.notes, *([what_they_are(flat)] if flat else ()))
        named = Named(stored, logical_of(stored, {}), None, (), (), notes, quantised)
    else:
        refuse_flat(flat, where)
        refuse_foreign(sections.names.values(), table, where)
        named = _with_table(spelled, weights, table, where, complain, quantised)
    unclear = sections.unclear
    if unclear is None and states and any(map(is_numbered_name, named.stored)):
        unclear = unnumbered_error("", where)
    notes = named.notes
    if sections.label:
        beside = [key for key in sections.names if not bare(key).startswith(sections.prefixes)]
        more = f", with {few(beside, 4)} beside it; --section {sections.label} leaves those out"
        note = f"section {sections.label} is read as the model{more if beside else ''}"
        notes += (f"{note}; tensors are named without it (--section . keeps all names)",)
    if sections.unclear is not None:
        notes += (sections.unclear.brief,)
    return replace(named, inventory=sections.inventory, unclear=unclear, notes=notes)


def _mistakable(
    states: Iterable[StoredOrWhole],
    sections: Sections,
    table: Table | None,
    where: str,
    complain: Complain,
) -> None:
    """Complain of a tensor that has a name of optimizer state and no form or parameter of such."""
    if not states:
        return
    params = {*sections.names.values(), *(table.known if table else ())}
    for s in states:
        ours, key = StateName.of(s.name), s.key or s.name
        if not sections.names or is_numbered_name(s.name):
            continue
        if all(file.startswith(SIDE_FOLDER) for file in files_of_tensor(s)):
            continue  # training state by its place
        root = sections.state.get(key)
        odd = ours is not None and ours.parameter not in params
        if root is None or (odd and is_state(key) and not state_in(key, root)):
            error = FamilyError(
                f"`{key}` has a name that is reserved for optimizer state, and no parameter here"
                " has such a state",
                at=where,
                hint="names that begin with `optimizer.` are reserved for optimizer state: if it"
                " is a submodule of the model, rename it in the state dict and save again",
                tensors=(key,),
            )
            complain(Complaint(error, files_of_tensor(s)))


def divided(
    tensors: Mapping[str, StoredOrWhole],
    config: Mapping[str, Any] | None,
    where: str,
    section: Sequence[str] = (),
    **more: Any,
) -> Sections:
    """The sections of stored tensors."""
    table = table_for(config)
    return divide(
        tensors,
        table.known.rows if table else None,
        where,
        configured=bool((config or {}).get("model_type")),
        chosen=section,
        **more,
    )


def _rule_of(parts: PartRules, known: RowsOfDialects | None) -> Callable[[WholeTensor], Rule]:
    """Gives a tensor that is the logical one of its name the rule of a weight's part, or the table's."""

    def rule_of(s: WholeTensor) -> Rule:
        rule = parts.get(s.name) if parts.quantised else None
        if rule is None and known is not None:
            rule = known.whole_rule(s.name, s.shape)
        return rule_of_rows(s.shape) if rule is None else rule

    return rule_of


def _with_table(
    listed: list[StoredOrWhole],
    weights: Mapping[str, StoredOrWhole],
    table: Table,
    where: str,
    complain: Complain,
    quantised: QuantisedWeights,
) -> Named:
    known = table.known
    kinds = (kind for kind in quantised.alike if kind.first.packed)
    packed = {part.name for kind in kinds for w in kind.weights for part in w.own_shapes}
    rows, rules = known.rows, PartRules(quantised, known)
    # A tensor that is the logical one of its name, or that no row has, needs a rule alone.
    given = ((name, weights.get(name), shape) for name, shape in table.logical.items())
    odd = {name for name, s, shape in given if s is not None and s.shape != shape and name in rows}
    odd = (odd | {name for name in known.fused if name in weights}) - packed
    if odd or len(weights) < len(listed) or {*map(type, listed)} - {WholeTensor}:
        named: Iterable[tuple[str, StoredOrWhole]] = (
            (s.name, s)
            if isinstance(s, WholeTensor) and s.name in weights and s.name not in odd
            else (s.name, _named(s, table, known, where, complain, packed, rules))
            for s in listed
        )
        if len(weights) < len(listed):
            numbers = kinds_of_numbers((s.name, s.shape) for s in listed)
            named = (part for name, s in named for part in _by_member(name, s, table, numbers))
        weights = unique(named, where, complain)
    stored = as_values(weights, _rule_of(rules, known))
    for error, name in packed_misfits(quantised, known, table.family, where):
        complain(Complaint(error, files_of_tensor(stored[name]), (name,)))
    strange = stored.keys() - rows.keys()
    strange.difference_update(*(names for kind in quantised.alike for _, names in kind.names))
    unknown = [n for n in stored if n in strange and not is_state(n)] if strange else []
    logical = logical_of(stored, table.logical)
    held = {*logical, *stood_for(quantised, known)}
    lost = must_be_there(table, held)
    dtype = common_dtype(listed if lost else ())
    absent = tuple(Logical(name, table.logical[name], dtype) for name in lost)
    problems = tuple(absences(absent))
    notes = quantised.notes
    if unknown:
        note = f"not in the table of {table.family}, carried name by name: {few(unknown, 4)}"
        notes = (note, *notes)
    return Named(stored, logical, table.family, absent, problems, notes, quantised)


def _named(
    found: StoredOrWhole,
    table: Table,
    known: RowsOfDialects,
    where: str,
    complain: Complain,
    packed: Collection[str],
    rules: PartRules,
) -> Stored:
    """A tensor as the table says."""
    s, cut = as_stored(found), rules.get(found.name)
    if (s.name not in known and not is_state(s.name)) or s.name in packed:
        return as_own_logical(s, cut)
    rule = known.whole_rule(s.name, s.shape)
    if rule is not None and s.layout.tensors == (s.name,):
        return Stored(s.name, s.dtype, s.layout, s.chunks, cut or rule, s.key)
    param = known.get(s.name)
    if param is not None:
        if param.layout.shape != s.shape:
            error = FamilyError(
                f"`{s.on_disk}` has shape {list(s.shape)}, config.json of {table.family}"
                f" gives {list(param.layout.shape)}",
                at=where,
                hint="the configuration is another model's, or the tensor is damaged",
                kind=shape_fault(s.name, s.shape, param.layout.shape),
                tensors=(s.on_disk,),
            )
            complain(Complaint(error, files_of_tensor(s), param.layout.tensors))
            return as_own_logical(s, cut)
        rule = cut or param.rule
        return Stored(s.name, s.dtype, param.layout, s.chunks, rule, s.key, param.value)
    ours = StateName.of(s.name)
    twin = known.get(ours.parameter) if ours else None
    if ours and twin is not None and twin.layout.shape == s.shape:
        layout = twin.layout.rename(of_kind(ours.kind))
        value = twin.value if ours.kind == MASTER else PLAIN
        return replace(s, layout=layout, rule=twin.rule, value=value)
    return as_own_logical(s, cut)


def shape_fault(name: str, have: Shape, want: Shape) -> str:
    """What it is that a tensor has another shape than it should."""
    taller = len(have) == len(want) and have[1:] == want[1:] and have[0] > want[0]
    return "vocabulary-padded" if taller and name.endswith(_VOCABULARY) else "shape-wrong"


def _by_member(
    name: str, s: StoredOrWhole, table: Table, numbers: Set[str]
) -> Iterator[tuple[str, StoredOrWhole]]:
    """A tensor under its name; a single number of a fused parameter's state once for each tensor in it.

    That of a parameter which is a part of a tensor stays its own: those of the other parts may differ.
    """
    state = None if s.shape else StateName.of(name)
    fused = table.known.get(state.parameter) if state and state.kind in numbers else None
    if state is None or fused is None or _is_part(fused.layout, table):
        yield name, s
        return
    for member in map(of_kind(state.kind), fused.layout.tensors):
        yield member, replace(as_stored(s), name=member, layout=Layout.of(member, ()))


def _is_part(layout: Layout, table: Table) -> bool:
    """Whether a layout holds some elements of a logical tensor, and not all."""
    return layout.mapped < sum([prod(table.logical[name]) for name in layout.tensors])


def common_dtype(listed: Sequence[StoredOrWhole]) -> Any:
    """The element type of most weights."""
    counts = Counter(s.dtype for s in listed if s.dtype.floating)
    if counts:
        return counts.most_common(1)[0][0]
    return listed[0].dtype if listed else BY_NAME["F32"]
