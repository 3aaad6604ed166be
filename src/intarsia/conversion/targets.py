"""Which tensors a destination holds, from what the source has and what was asked for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from intarsia.conversion.target_rows import (
    both_keep_names,
    dialect_for,
    model_rows,
    rows_for,
    with_one_number,
    without_a_table,
)
from intarsia.errors import UsageError, few
from intarsia.family import Param, table_for
from intarsia.format.base import Format
from intarsia.format.optimizer_state.optimizer_names import is_numbered_name
from intarsia.format.registry import format_named, names_of
from intarsia.format.request import Request, Wanted
from intarsia.format.written_tensors import tensors_left_out, written_type
from intarsia.mesh import Box, Mesh, Shape
from intarsia.opened.masters import has_own_master
from intarsia.planning.inventory import Reason
from intarsia.planning.manifest import Manifest, Target
from intarsia.quantised.refusing import refuse_faults, refuse_numbers
from intarsia.state.names import STEP, is_state, kind_of, like, parameter_of, state_among


def targets_for(src: Manifest, request: Request) -> Wanted:
    """The tensors of the destination that a request asks for."""
    writer = format_named(request.to)
    _check(request)
    _check_named(src, request, writer)
    _check_rates(src, request, writer)
    _check_halves(src, request)
    request = _as_quantised(src, request, writer)
    if request.optimizer == "keep":
        writer.check_state(src)
    dialect = dialect_for(src, request, writer)
    if not writer.keeps_names and table_for(src.config) is None:
        raise without_a_table(src, request, dialect)
    own = writer.targets(src, request)
    if own is not None:
        return replace(
            own,
            equal=(*own.equal, *tied_and_stored(src, own.drop)),
            rounded=tuple(n for n in own.rounded if has_own_master(src, n)),
        )
    drop = _dropped(src, request, writer)
    rows, equal = with_one_number(rows_for(src, request, writer, drop.keys()), src, drop.keys())
    for names in equal:
        why = f"equal to `{names[0]}`: a fused parameter has one number of it"
        drop |= dict.fromkeys(names[1:], Reason(why))
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
    name, layout, rule = row.name, row.layout, row.rule
    asked = None if request.dtype is None or is_state(name) else request.dtype
    boxes = request.mesh.boxes(layout.shape, rule) if writer.sharded else _whole(layout.shape)
    dtype = written_type(name, layout.tensors or (name,), src, asked)
    return Target(writer.spell(name), dtype, layout, boxes, rule, row.value)


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


def _dropped(src: Manifest, request: Request, writer: Format) -> dict[str, Reason]:
    """What is left out, and why."""
    dialect = dialect_for(src, request, writer)
    table = table_for(src.config)
    tied = table.tied if table and dialect not in ("same", "hf-module") else {}
    found = {n: Reason(why) for n in state_among(src.logical) if (why := writer.left_out(n))}
    return found | dict(tensors_left_out(src, tied, request.optimizer))


def tied_and_stored(src: Manifest, drop: Collection[str]) -> list[tuple[str, ...]]:
    """Tensors that are left out because they are tied, each after the tensor that it is tied to: both must be equal."""
    table = table_for(src.config)
    found: list[tuple[str, ...]] = []
    if table is None or not table.tied:
        return found
    for name in src.logical:
        twin = table.tied.get(parameter_of(name))
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
    """Raise where nothing says whose the state is that is to be written; numbers may stay numbers, and keys what they are."""
    if src.state_unclear is None or request.optimizer == "drop":
        return
    if writer.keeps_keys and src.saved:
        return
    if not (both_keep_names(src, writer) and any(map(is_numbered_name, src.logical))):
        raise src.state_unclear


def _check_halves(src: Manifest, request: Request) -> None:
    """Raise where weights would be rounded away under state that holds what bf16 weights lack of main weights."""
    if request.dtype is None or request.dtype.name == "BF16" or request.optimizer == "drop":
        return
    for name in state_among(src.logical):
        state, weight = src.logical[name], src.logical.get(parameter_of(name))
        if weight is not None and (state.dtype.name, weight.dtype.name) == ("I16", "BF16"):
            raise UsageError(
                f"`{name}` is {state.dtype}: what the bf16 weight lacks of its main weight, which means nothing beside"
                f" weights of {request.dtype}",
                at=src.path,
                hint="leave --dtype out, or take only the weights with --optimizer drop",
            )


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
    rows = {row.name: row for row in model_rows(src, request, writer, table, dialect)}
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
