"""From the tensors of a `torch_dist` checkpoint to logical ones, layer by layer and expert by expert."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from intarsia.errors import FamilyError, FormatError, IntarsiaError, few
from intarsia.family import Param, Table, table_for
from intarsia.family.parts import must_be_there
from intarsia.format.complaint import Complain, Complaint
from intarsia.format.dcp.archives import stored_of
from intarsia.format.dcp.metadata import Metadata, TensorRecord
from intarsia.format.megatron.keys import Key, MegatronRows, is_megatron_name
from intarsia.format.megatron.optimizer.buckets import is_bucket, read_buckets
from intarsia.format.megatron.optimizer.state_tensors import (
    flatten_shards,
    flattened_shape,
    state_of,
    state_row,
)
from intarsia.mesh import Box, Shape
from intarsia.planning.manifest import Chunk, Logical, Stored
from intarsia.planning.problem import Problem, absences
from intarsia.state.names import parameter_of


@dataclass
class Found:
    """Stored tensors, and what their names told."""

    stored: dict[str, Stored] = field(default_factory=dict)
    logical: dict[str, Logical] = field(default_factory=dict)
    copies: list[Stored] = field(default_factory=list)
    family: str | None = None
    absent: tuple[Logical, ...] = ()
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    def add(self, stored: Stored) -> None:
        if stored.name in self.stored:
            raise FamilyError(
                f"`{self.stored[stored.name].key}` and `{stored.key}` are the same",
                tensors=(
                    self.stored[stored.name].key,
                    stored.key,
                ),
            )
        self.stored[stored.name] = stored


def name_tensors(
    metadata: Metadata,
    config: Mapping[str, Any] | None,
    args: Mapping[str, Any],
    where: str,
    complain: Complain,
) -> Found:
    centered = args.get("layernorm_zero_centered_gamma")
    table = table_for(config, zero_centered=centered if isinstance(centered, bool) else None)
    found = Found()
    if table is None:
        for record in metadata.tensors.values():
            found.add(stored_of(record))
        for s in found.stored.values():
            found.logical[s.name] = Logical(s.name, s.shape, s.dtype)
        why = "no config.json, and the stored arguments do not determine the family"
        if config is not None:
            why = f"model_type {config.get('model_type')!r} has no table"
        found.notes = (f"{why}: each stored tensor is carried name by name; --config gives one",)
        return found
    _with_table(found, metadata, table, where, complain)
    return found


def _with_table(
    found: Found, metadata: Metadata, table: Table, where: str, complain: Complain
) -> None:
    rows = MegatronRows(table)
    unknown: list[str] = []
    carried: list[str] = []
    for record in metadata.tensors.values():
        if is_bucket(record.name):
            continue
        try:
            parts = list(_read(record, rows, metadata.extra))
        except IntarsiaError as error:
            complain(Complaint(error, record.files, _tensors(record, rows)))
            found.add(stored_of(record))
            continue
        if not parts:
            foreign = not is_megatron_name(record.name)
            (carried if foreign else unknown).append(record.name)
            parts = [stored_of(record)]
        for stored in parts:
            found.add(stored)
    if carried:
        found.notes += (f"not of the language model, carried name by name: {few(carried, 4)}",)
    if unknown:
        strange = FamilyError(
            f"{len(unknown)} tensors are not in the Megatron table of {table.family}:"
            f" {few(unknown, 4)} - at {where}",
            hint="the configuration is another model's, or the family's table lacks them",
        )
        complain(Complaint(strange, names=tuple(unknown)))
    _add_buckets(found, [r for r in metadata.tensors.values() if is_bucket(r.name)], where)
    found.family = table.family
    found.logical = _logical(found.stored.values(), table.logical)
    floating = next((s.dtype for s in found.stored.values() if s.dtype.floating), None)
    found.absent = tuple(
        Logical(name, table.logical[name], floating)
        for name in must_be_there(table, found.logical)
        if floating
    )
    found.problems += tuple(absences(found.absent))


def _tensors(record: TensorRecord, rows: MegatronRows) -> tuple[str, ...]:
    """The logical tensors that a name on disk stands for, whatever its shape."""
    state = state_of(record.name)
    row = rows.row(Key.parse(rows.bare(state[1] if state else record.name)))
    if row is None:
        return (record.name,)
    return (state_row(row, state[0]) if state else row).layout.tensors


def _add_buckets(found: Found, buckets: list[TensorRecord], where: str) -> None:
    """Optimizer state out of buckets; where it cannot be found in them, the rest is still read."""
    if not buckets:
        return
    try:
        model = list(found.stored.values())
        for stored in read_buckets(buckets, model, where, found.copies):
            found.add(stored)
        found.notes += ("optimizer state is read from Megatron's buckets, which it fits exactly",)
    except FormatError as error:
        for record in buckets:
            found.add(stored_of(record))
        text = f"optimizer state stays in Megatron's buckets: {error}"
        found.problems += (Problem("", tuple(r.name for r in buckets), (), text),)
        found.notes += (f"{len(buckets)} buckets of optimizer state are carried as they are",)


def _logical(stored: Iterable[Stored], shapes: Mapping[str, Shape]) -> dict[str, Logical]:
    found: dict[str, Logical] = {}
    for s in stored:
        for name in s.layout.tensors:
            if name not in found:
                found[name] = Logical(name, shapes.get(parameter_of(name), s.shape), s.dtype)
    return found


def _read(record: TensorRecord, rows: MegatronRows, extra: Mapping[str, Any]) -> Iterator[Stored]:
    """The stored tensors that a tensor on disk is; none where the table does not know it."""
    state = state_of(record.name)
    name = rows.bare(state[1] if state else record.name)
    found = False
    for key, shape, chunks in _parts(record, Key.parse(name)):
        flat = (
            flattened_shape(extra, record.name, len(record.shape) - len(shape)) if state else None
        )
        row = rows.find(key, flat or shape)
        if row is None:
            if found:
                raise _beyond(record, key, rows)
            return
        found = True
        row = Param(str(key), row.layout, row.rule, row.value)
        if flat is not None:
            row = flatten_shards(row, shape, record.name)
        if state is not None:
            row = state_row(row, state[0])
        yield Stored(row.name, record.dtype, row.layout, chunks, row.rule, record.name, row.value)


def _beyond(record: TensorRecord, key: Key, rows: MegatronRows) -> FamilyError:
    """A stack of which the configuration knows the first parts only."""
    counts = [f"{n} layers" for n in record.shape[:1] if Key.parse(record.name).stacked]
    return FamilyError(
        f"`{record.name}` {list(record.shape)} holds `{key}`"
        f"{' among ' + counts[0] if counts else ''}, which the configuration of {rows.family}"
        " does not describe",
        hint="the configuration is another model's: give the model's own with --config",
        tensors=(record.name,),
    )


def _parts(record: TensorRecord, key: Key) -> Iterator[tuple[Key, Shape, tuple[Chunk, ...]]]:
    """A tensor cut by its layers and experts, as far as no chunk spans two of them."""
    leading = 0
    for axis_is in (key.stacked, key.of_experts):
        if not axis_is:
            continue
        if any(c.box.shape[leading] != 1 for c in record.chunks):
            break
        leading += 1
    held: dict[Shape, list[Chunk]] = {}
    for c in record.chunks:
        box = Box(c.box.offsets[leading:], c.box.shape[leading:])
        chunk = Chunk(box, c.file, c.start_bytes, c.length_bytes)
        held.setdefault(c.box.offsets[:leading], []).append(chunk)
    for index in product(*map(range, record.shape[:leading])):
        places = iter(index)
        layer = next(places) if key.stacked and leading else key.layer
        expert = next(places, key.expert)
        part = Key(key.rest, key.head, layer, expert, key.half)
        yield part, record.shape[leading:], tuple(held.get(index, ()))
