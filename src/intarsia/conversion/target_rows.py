"""The rows that the tensors of a destination are made by: as they are stored, or as a family's table has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from intarsia.errors import FamilyError, UsageError, few
from intarsia.family import Param, Table
from intarsia.family.from_transformers.beside_text import respelled
from intarsia.format.base import Format
from intarsia.format.optimizer_state.single_numbers import (
    kinds_of_numbers,
    no_place_for,
    other_shape,
)
from intarsia.format.registry import format_named, names_of
from intarsia.format.request import Request
from intarsia.layout import Layout
from intarsia.planning.manifest import Logical, Manifest, Stored
from intarsia.state.names import MASTER, SHAPED, STEP, StateName, is_state, of_kind, state_among
from intarsia.value import PLAIN


def dialect_for(src: Manifest, request: Request, writer: Format) -> str:
    """The dialect to write, checked against what the format has."""
    if request.dialect is None:
        if both_keep_names(src, writer):
            return "same"
        return next(d for d in writer.dialects if d != "same")
    if request.dialect not in writer.dialects:
        raise UsageError(
            f"{request.to} is not written in dialect {request.dialect!r}",
            hint=f"one of: {', '.join(writer.dialects)}",
        )
    return request.dialect


def both_keep_names(src: Manifest, writer: Format) -> bool:
    """Whether names and fusions stay as they are, unless asked otherwise."""
    return writer.keeps_names and format_named(src.format).keeps_names


def _keeps_names(format: Format) -> bool:
    return format.keeps_names


def rows_for(src: Manifest, request: Request, writer: Format, dropped: Set[str]) -> list[Param]:
    """What is to be written; the family's absent tensors are wanted too, so that they are missed."""
    dialect = dialect_for(src, request, writer)
    if dialect == "same":
        stored = map(_as_stored, src.stored.values())
        return [*stored, *(Param(x.name, Layout.of(x.name, x.shape)) for x in src.absent)]
    table = writer.table(src)
    if table is None:
        return _name_by_name(src, request, writer, dialect)
    model = list(model_rows(src, request, writer, table, dialect))
    trained = _trained(model, src, table) if dialect == "hf-module" else model
    rows = [*model, *state_rows(trained, src.logical, writer, dropped)]
    covered = {name for row in rows for name in row.layout.tensors or (row.name,)} | dropped
    held = ((s, s.layout.tensors or (s.name,)) for s in src.stored.values())
    rest = [s for s, names in held if not covered.issuperset(names) and not _is_padding(s)]
    if not writer.carries_anything:
        rest = [s for s in rest if not is_state(s.name)]
        lost = [s.on_disk for s in rest if not table.is_beside_the_text(s.name)]
        if lost:
            raise FamilyError(
                f"{len(lost)} tensors of {src.path} are not in the {dialect} table of"
                f" {table.family}: {few(lost, 4)}",
                hint=f"convert to {names_of(_keeps_names)}, which carry them name by name, or"
                " add them to the table",
            )
    beside = map(_as_stored, rest)
    return [*rows, *respelled(beside, src.stored, table, dialect, src.config or {})]


def _is_padding(s: Stored) -> bool:
    """Whether a tensor has elements, and none of them is a logical tensor's: a rank's padding alone."""
    return not s.layout.pieces and s.layout.size > 0


def _as_stored(s: Stored) -> Param:
    """The row of a tensor that keeps its name and layout."""
    return Param(s.name, s.layout, s.rule, s.value.as_target)


def _name_by_name(src: Manifest, request: Request, writer: Format, dialect: str) -> list[Param]:
    if request.dialect is None and writer.carries_anything and both_keep_names(src, writer):
        return [*map(_as_stored, src.stored.values())]
    raise without_a_table(src, request, dialect)


def without_a_table(src: Manifest, request: Request, dialect: str) -> FamilyError:
    """Why a source whose family has no table cannot be written."""
    model_type = (src.config or {}).get("model_type")
    said = f"model_type {model_type!r} has no table" if model_type else "no model configuration"
    hint = "give the model's config.json with --config"
    if model_type:
        hint = "write a table for it (docs/how-to/add-a-family.md)"
    if format_named(src.format).keeps_names:
        hint += f", or use --dialect same between {names_of(_keeps_names, 'and')}"
    return FamilyError(
        f"{src.path} cannot be written as {request.to} in dialect {dialect!r}: {said}", hint=hint
    )


def model_rows(
    src: Manifest, request: Request, writer: Format, table: Table, dialect: str
) -> Iterator[Param]:
    """The rows that are wanted: all but those that are optional and that the source lacks.

    A tied tensor is written where the module has it, from its twin if need be, and nowhere else.
    """
    no_head = (table.head,) if table.class_without_head and table.head not in src.logical else ()
    missed, special = {x.name for x in src.absent}, table.tied.keys() | table.optional
    for row in writer.rows(table, dialect, request.mesh, request.spec):
        names = row.layout.tensors
        if special.isdisjoint(names):
            yield row
        elif names and all(name in table.tied for name in names):
            if dialect == "hf-module" and names != no_head:
                twins = {n: n if n in src.logical else table.tied[n] for n in names}
                yield replace(row, layout=row.layout.rename(twins))
        elif not all(n in table.optional and n not in src.logical for n in names) or any(
            n in missed for n in names
        ):
            yield row


def _trained(model: Sequence[Param], src: Manifest, table: Table) -> list[Param]:
    """The rows of parameters that an optimizer has state of: not those that are another's tensor once more."""
    lent, rows = table.tied.keys() - src.logical.keys(), table.dialects["hf-module"]
    return [row for row in model if not lent or not lent.issuperset(rows.operands(row.name))]


def state_rows(
    model: Sequence[Param], logical: Mapping[str, Logical], writer: Format, dropped: Set[str]
) -> Iterator[Param]:
    """The optimizer state of the model's rows that a source holds, kind by kind.

    State of another shape than its parameter's (NAdam's `mu_product`, Adafactor's factors) stays as it is where
    names are kept; `with_one_number` has the single numbers of fused ones.
    """
    kinds: dict[str, set[str]] = {}
    states = state_among(logical)
    numbers = kinds_of_numbers((name, logical[name].shape) for name in states)
    for name in states:
        if state := StateName.of(name):
            kinds.setdefault(state.kind, set()).add(state.parameter)
    for kind, held in sorted(kinds.items()):
        if kind == STEP:
            continue
        for row in model:
            names = row.layout.tensors
            if not names or not held.issuperset(names):
                continue
            layout = row.layout.rename(of_kind(kind))
            value = row.value if kind == MASTER else PLAIN
            odd = other_shape(layout.tensors, row, logical)
            shape = logical[odd].shape if odd else ()
            if odd is None or odd in dropped or (not shape and kind not in numbers):
                yield Param(of_kind(kind)(row.name), layout, row.rule, value)
            elif writer.keeps_names and len(layout.tensors) == 1 and kind not in SHAPED:
                yield Param(of_kind(kind)(row.name), Layout.of(odd, shape))
            elif shape or not writer.keeps_names:
                raise no_place_for(odd, shape, row, writer.name)


def with_one_number(
    rows: Sequence[Param], src: Manifest, dropped: Set[str]
) -> tuple[list[Param], list[tuple[str, ...]]]:
    """The rows, with state that is one number once for each parameter that is fused, cut or called otherwise.

    And what each of these stands for, where that is more than one.
    """
    states = state_among(src.logical)
    if not states:
        return [*rows], []
    kinds = kinds_of_numbers((n, src.logical[n].shape) for n in states) | {STEP}
    named = [*map(of_kind, sorted(kinds))]
    groups: dict[str, tuple[str, ...]] = {}
    own = set[str]()
    trained = {state.parameter for row in rows if (state := StateName.of(row.name))}
    for row in rows:
        tensors = row.layout.tensors
        if is_state(row.name) or (len(tensors) < 2 and row.name not in trained):
            continue
        for of in named:
            names = tuple([name for tensor in tensors for name in _numbers(of, tensor, src)])
            if names == (of(row.name),):
                own.add(of(row.name))
            elif names and all(n in src.logical and n not in dropped for n in names):
                groups[of(row.name)] = names
    if not groups:
        return [*rows], []
    fused = {name for names in groups.values() for name in names} - own
    numbers = (
        Param(name, Layout.of(names[0], src.logical[names[0]].shape))
        for name, names in groups.items()
    )
    kept = (row for row in rows if fused.isdisjoint(row.layout.tensors))
    return [*kept, *numbers], [names for names in groups.values() if len(names) > 1]


def _numbers(of: Callable[[str], str], tensor: str, src: Manifest) -> tuple[str, ...]:
    """The names of a tensor's number: its own, or those of the parameters that are its parts."""
    own = of(tensor)
    return (own,) if own in src.logical else tuple(of(s.name) for s in src.sources.get(tensor, ()))
