"""Which tensors a destination holds, from what the source has and what was asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from functools import lru_cache

from intarsia.errors import FamilyError, UsageError, few
from intarsia.family import Param, Table, table_for
from intarsia.family.beside_text import respelled
from intarsia.format.base import Format
from intarsia.format.optimizer_state.optimizer_names import is_numbered_name
from intarsia.format.registry import format_named, names_of
from intarsia.format.request import Request, Wanted
from intarsia.format.written_tensors import left_out, written_type
from intarsia.layout import Layout
from intarsia.mesh import Box, Mesh, Shape
from intarsia.opened.masters import has_own_master
from intarsia.planning.manifest import Manifest, Stored, Target
from intarsia.quantised.refusing import refuse_faults, refuse_numbers
from intarsia.state.names import (
    MASTER,
    STEP,
    StateName,
    is_state,
    kind_of,
    like,
    of_kind,
    parameter_of,
    step_of,
)
from intarsia.value import PLAIN


def targets_for(src: Manifest, request: Request) -> Wanted:
    """The tensors of the destination that a request asks for."""
    writer = format_named(request.to)
    _check(request)
    _check_named(src, request, writer)
    _check_rates(src, request, writer)
    request = _as_quantised(src, request, writer)
    if request.optimizer == "keep":
        writer.check_state(src)
    dialect = dialect_for(src, request, writer)
    if not writer.keeps_names and table_for(src.config) is None:
        raise _without_a_table(src, request, dialect)
    own = writer.targets(src, request)
    if own is not None:
        return replace(
            own,
            equal=(*own.equal, *tied_and_stored(src, own.drop)),
            rounded=tuple(n for n in own.rounded if has_own_master(src, n)),
        )
    drop = _dropped(src, request, writer)
    rows, equal = _with_one_step(_rows(src, request, writer, drop.keys()), src, drop.keys())
    for names in equal:
        why = f"equal to `{names[0]}`: a fused parameter has one counter"
        drop |= dict.fromkeys(names[1:], why)
    targets = tuple(
        _target(row, src, request, writer)
        for row in rows
        if not (drop and drop.keys() >= set(row.layout.tensors or (row.name,)))
    )
    notes = []
    if not writer.sharded and request.mesh != Mesh():
        notes.append(f"{request.to} is not sharded by mesh: {request.mesh} has no effect")
    if src.entries and request.optimizer == "drop":
        some = few([*src.entries], 3)
        notes.append(f"{len(src.entries)} entries are dropped as asked: {some}")
    if _parts_from_masters(src, request):
        notes.append(
            f"weights are cast to {request.dtype} as they are stored, not from their fp32 main"
            " weights, which are kept beside them and no longer round to them"
        )
    counted = writer.counted(src) if request.optimizer == "keep" else ()
    equal += [counted] if counted else []
    equal += tied_and_stored(src, drop)
    return Wanted(targets, drop, request.optimizer == "keep", tuple(notes), tuple(equal))


def _target(row: Param, src: Manifest, request: Request, writer: Format) -> Target:
    shape, names = row.layout.shape, row.layout.tensors or (row.name,)
    asked = None if is_state(row.name) else request.dtype
    boxes = request.mesh.boxes(shape, row.rule) if writer.sharded else _whole(shape)
    dtype = written_type(row.name, names, src, asked)
    return Target(writer.spell(row.name), dtype, row.layout, boxes, row.rule, row.value)


def dialect_for(src: Manifest, request: Request, writer: Format) -> str:
    """The dialect to write, checked against what the format has."""
    if request.dialect is None:
        if _keep_names(src, writer):
            return "same"
        return next(d for d in writer.dialects if d != "same")
    if request.dialect not in writer.dialects:
        raise UsageError(
            f"{request.to} is not written in dialect {request.dialect!r}",
            hint=f"one of: {', '.join(writer.dialects)}",
        )
    return request.dialect


def _keep_names(src: Manifest, writer: Format) -> bool:
    """Whether names and fusions stay as they are, unless asked otherwise."""
    return writer.keeps_names and format_named(src.format).keeps_names


def _keeps_names(format: Format) -> bool:
    return format.keeps_names


def _parts_from_masters(src: Manifest, request: Request) -> bool:
    """Whether a cast makes weights that are not their main weights rounded."""
    if request.dtype is None or request.optimizer == "drop":
        return False
    own = (x for name, x in src.logical.items() if has_own_master(src, name))
    return any(x.dtype != request.dtype for x in own)


@lru_cache(maxsize=4096)
def _whole(shape: Shape) -> tuple[Box, ...]:
    """One box; the same for every tensor of a shape, so that one proof serves them all."""
    return (Box.whole(shape),)


def _dropped(src: Manifest, request: Request, writer: Format) -> dict[str, str]:
    """What is left out, and why."""
    dialect = dialect_for(src, request, writer)
    table = table_for(src.config)
    tied = table.tied if table and dialect not in ("same", "hf-module") else {}
    found = {name: why for name in src.logical if (why := writer.left_out(name))}
    return found | dict(left_out(src, tied, request.optimizer))


def tied_and_stored(src: Manifest, drop: Collection[str]) -> list[tuple[str, ...]]:
    """Tensors that are left out because they are tied, each after the tensor that it is tied to: both must be equal."""
    table = table_for(src.config)
    found: list[tuple[str, ...]] = []
    for name in src.logical:
        twin = table.tied.get(parameter_of(name)) if table else None
        if twin is not None and name in drop and kind_of(name) != STEP:
            kept = like(name)(twin)
            found += [(kept, name)] if kept in src.logical else []
    return found


def _check(request: Request) -> None:
    if request.optimizer not in ("keep", "drop"):
        raise UsageError(f"optimizer is {request.optimizer!r}", hint="keep or drop")
    if request.spec not in ("te", "local"):
        raise UsageError(f"the Megatron spec is {request.spec!r}", hint="te or local")
    if request.dtype is not None and (
        not request.dtype.floating or request.dtype.name == "F8_E8M0"
    ):
        raise UsageError(
            f"weights cannot be cast to {request.dtype}",
            hint="choose a floating-point element type",
        )


def _check_named(src: Manifest, request: Request, writer: Format) -> None:
    """Raise where state is to be written of which nothing says whose it is; numbers may stay numbers."""
    if src.state_unclear is None or request.optimizer == "drop":
        return
    if not (_keep_names(src, writer) and any(map(is_numbered_name, src.logical))):
        raise src.state_unclear


def _check_rates(src: Manifest, request: Request, writer: Format) -> None:
    if request.rates is None:
        return
    if not writer.takes_rates:
        takers = names_of(lambda format: format.takes_rates)
        raise UsageError(
            f"--megatron-lr is for the parameter groups of {takers}, and {request.to} is asked for",
            hint="leave --megatron-lr out",
        )
    if request.optimizer == "drop" or not any(map(is_state, src.logical)):
        why = "is dropped" if request.optimizer == "drop" else f"is not in {src.path}"
        raise UsageError(
            f"--megatron-lr is for optimizer state, which {why}", hint="leave --megatron-lr out"
        )


def _as_quantised(src: Manifest, request: Request, writer: Format) -> Request:
    """The request for a source with quantised weights, which are written as they are stored or not at all."""
    refuse_faults(src.quantised, src.path)
    if not src.quantised:
        return request
    if request.dtype is not None:
        refuse_numbers(src.quantised, src.path, f"--dtype {request.dtype} needs their numbers")
    if not writer.keeps_names:
        refuse_numbers(src.quantised, src.path, f"{request.to} cannot hold their scales")
    dialect = dialect_for(src, request, writer)
    if dialect != "same" and not _is_stored_so(src, request, writer, dialect):
        what = f"dialect {dialect!r} would fuse or rename weights without their scales"
        refuse_numbers(src.quantised, src.path, what)
    return replace(request, dialect="same")


def _is_stored_so(src: Manifest, request: Request, writer: Format, dialect: str) -> bool:
    """Whether a source with quantised weights has the very tensors of a dialect."""
    table = table_for(src.config)
    if table is None:
        return False
    rows = {row.name: row for row in _model_rows(src, request, writer, table, dialect)}
    parts = src.quantised.by_part
    for s in src.stored.values():
        if s.name in parts and (s.name not in rows or parts[s.name][0].packed):
            if parts[s.name][0].of not in rows:
                return False
        elif s.name in rows:
            if rows[s.name].layout != s.layout:
                return False
        elif s.name in table.known:
            return False
    return rows.keys() <= {*src.stored, *(w.of for w in src.quantised.weights)}


def _rows(src: Manifest, request: Request, writer: Format, dropped: Set[str]) -> list[Param]:
    """What is to be written; the family's absent tensors are wanted too, so that they are missed."""
    dialect = dialect_for(src, request, writer)
    if dialect == "same":
        stored = map(_as_stored, src.stored.values())
        return [*stored, *(Param(x.name, Layout.of(x.name, x.shape)) for x in src.absent)]
    table = table_for(src.config)
    if table is None:
        return _name_by_name(src, request, writer, dialect)
    model = list(_model_rows(src, request, writer, table, dialect))
    rows = [*model, *state_rows(model, src.logical)]
    covered = {name for row in rows for name in row.layout.tensors}
    covered |= dropped
    rest = [s for s in src.stored.values() if not covered.issuperset(s.layout.tensors)]
    if not writer.carries_anything:
        rest = [s for s in rest if not is_state(s.name)]
        lost = [s.key or s.name for s in rest if not table.is_beside_the_text(s.name)]
        if lost:
            raise FamilyError(
                f"{len(lost)} tensors of {src.path} are not in the {dialect} table of"
                f" {table.family}: {few(lost, 4)}",
                hint=f"convert to {names_of(_keeps_names)}, which carry them name by name, or"
                " add them to the table",
            )
    beside = map(_as_stored, rest)
    return [*rows, *respelled(beside, src.stored, table, dialect, src.config or {})]


def _as_stored(s: Stored) -> Param:
    """The row of a tensor that keeps its name and layout."""
    return Param(s.name, s.layout, s.rule, s.value.as_target)


def _name_by_name(src: Manifest, request: Request, writer: Format, dialect: str) -> list[Param]:
    if request.dialect is None and writer.carries_anything and _keep_names(src, writer):
        return [*map(_as_stored, src.stored.values())]
    raise _without_a_table(src, request, dialect)


def _without_a_table(src: Manifest, request: Request, dialect: str) -> FamilyError:
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


def _model_rows(
    src: Manifest, request: Request, writer: Format, table: Table, dialect: str
) -> Iterator[Param]:
    """The rows that are wanted: all but those that are optional and that the source lacks.

    A tied tensor is written where the module has it, from its twin if need be, and nowhere else.
    """
    missed = {x.name for x in src.absent}
    for row in writer.rows(table, dialect, request.mesh, request.spec):
        names = row.layout.tensors
        if names and all(name in table.tied for name in names):
            if dialect == "hf-module":
                twins = {n: n if n in src.logical else table.tied[n] for n in names}
                yield replace(row, layout=row.layout.rename(twins))
        elif not all(n in table.optional and n not in src.logical for n in names) or any(
            n in missed for n in names
        ):
            yield row


def state_rows(model: Sequence[Param], logical: Iterable[str]) -> Iterator[Param]:
    """The optimizer state of the model's rows that a source holds, kind by kind."""
    kinds: dict[str, set[str]] = {}
    for name in logical:
        if state := StateName.of(name):
            kinds.setdefault(state.kind, set()).add(state.parameter)
    for kind, held in sorted(kinds.items()):
        if kind == STEP:
            continue
        for row in model:
            if row.layout.tensors and held.issuperset(row.layout.tensors):
                layout = row.layout.rename(of_kind(kind))
                value = row.value if kind == MASTER else PLAIN
                yield Param(of_kind(kind)(row.name), layout, row.rule, value)


def _with_one_step(
    rows: Sequence[Param], src: Manifest, dropped: Set[str]
) -> tuple[list[Param], list[tuple[str, ...]]]:
    """The rows, with one step for each fused parameter; and the steps that each of these stands for."""
    groups: dict[str, tuple[str, ...]] = {}
    for row in rows:
        names = tuple(map(step_of, row.layout.tensors))
        if len(names) > 1 and all(n in src.logical and n not in dropped for n in names):
            groups[step_of(row.name)] = names
    fused = {name for names in groups.values() for name in names}
    steps = (
        Param(name, Layout.of(names[0], src.logical[names[0]].shape))
        for name, names in groups.items()
    )
    kept = (row for row in rows if fused.isdisjoint(row.layout.tensors))
    return [*kept, *steps], list(groups.values())
