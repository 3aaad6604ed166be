"""From the tensors of a `torch_dist` checkpoint to logical ones, layer by layer and expert by expert."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from intarsia.errors import FamilyError, FormatError, IntarsiaError, few
from intarsia.family import Param, Table
from intarsia.format.complaint import Complain, Complaint
from intarsia.format.dcp.archives import stored_record
from intarsia.format.dcp.metadata import Metadata, TensorRecord
from intarsia.format.megatron.keys import Key, MegatronRows, is_megatron_name
from intarsia.format.megatron.named_tensors import BY_THEIR_NAMES, MegatronTensors
from intarsia.format.megatron.optimizer.buckets import read_buckets
from intarsia.format.megatron.optimizer.buffers import is_bucket
from intarsia.format.megatron.optimizer.state_tensors import (
    flatten_shards,
    flattened_shape,
    state_of,
    state_row,
)
from intarsia.layout import whole_layout
from intarsia.mesh import Box, Rule, Shape
from intarsia.planning.manifest import Chunk, Stored
from intarsia.state.names import ROOT
from intarsia.value import PLAIN

_CHAINED = re.compile(r"^chained_\d+\.optimizer\.")


def name_tensors(
    metadata: Metadata,
    table: Table | None,
    config: Mapping[str, Any] | None,
    where: str,
    complain: Complain,
    in_bf16: Collection[int] = (),
) -> MegatronTensors:
    """What the names of tensors lead to; `in_bf16` are the layers that a run in eight bits keeps so."""
    found = MegatronTensors()
    if table is not None:
        _with_table(found, metadata, table, where, complain, in_bf16)
        return found
    for record in metadata.tensors.values():
        _add_by_name(found, record, metadata.extra, complain)
    why = "no config.json, and the stored arguments do not determine the family"
    if config is not None:
        why = f"model_type {config.get('model_type')!r} has no table"
    found.notes.append(f"{why}: {BY_THEIR_NAMES}")
    return found


def _with_table(
    found: MegatronTensors,
    metadata: Metadata,
    table: Table,
    where: str,
    complain: Complain,
    in_bf16: Collection[int],
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
            found.add(stored_record(record), table.logical)
            continue
        if not parts:
            foreign = not is_megatron_name(record.name)
            (carried if foreign else unknown).append(record.name)
            _add_by_name(found, record, metadata.extra, complain)
        for stored in parts:
            found.add(stored, table.logical)
    if carried:
        found.notes.append(f"not of the language model, carried name by name: {few(carried, 4)}")
    if unknown:
        strange = FamilyError(
            f"{len(unknown)} tensors are not in the Megatron table of {table.family}:"
            f" {few(unknown, 4)}",
            at=where,
            hint="the configuration is another model's, or the family's table lacks them",
        )
        complain(Complaint(strange, names=tuple(unknown)))
    buckets = [r for r in metadata.tensors.values() if is_bucket(r.name)]
    _add_buckets(found, buckets, table, where, in_bf16)
    found.miss(table, found.floating)


def _tensors(record: TensorRecord, rows: MegatronRows) -> tuple[str, ...]:
    """The logical tensors that a name on disk stands for, whatever its shape."""
    state = state_of(record.name)
    row = rows.row(Key.parse(rows.bare(state[1] if state else record.name)))
    if row is None:
        return (record.name,)
    return (state_row(row, state[0]) if state else row).layout.tensors


def _add_buckets(
    found: MegatronTensors,
    buckets: list[TensorRecord],
    table: Table,
    where: str,
    in_bf16: Collection[int],
) -> None:
    """Optimizer state out of buckets; where it cannot be found in them, the rest is still read."""
    if not buckets:
        return
    try:
        model = list(found.stored.values())
        for stored in read_buckets(buckets, model, where, found.copies, in_bf16):
            found.add(stored, table.logical)
        found.notes.append("optimizer state is read from Megatron's buckets, which it fits exactly")
    except FormatError as error:
        for record in buckets:
            found.add(_as_stored(record))
        found.cannot_name(error, [r.name for r in buckets], "in Megatron's buckets")


def _add_by_name(
    found: MegatronTensors, record: TensorRecord, extra: Mapping[str, Any], complain: Complain
) -> None:
    """Add a tensor under its own name: optimizer state has that of its parameter, and the parameter's shape."""
    state = None if is_bucket(record.name) else state_of(record.name)
    if state is None:
        found.add(_as_stored(record))
        return
    kind, key = state
    flat = flattened_shape(extra, record.name, 0)
    row = Param(key, whole_layout(key, flat or record.shape), Rule(), PLAIN)
    try:
        row = state_row(flatten_shards(row, record.shape, record.name) if flat else row, kind)
    except FormatError as error:
        complain(Complaint(error, record.files, (record.name,)))
        found.add(_as_stored(record))
        return
    stored = Stored(row.name, record.dtype, row.layout, record.chunks, key=record.name)
    found.add(stored, {key: flat or record.shape})


def _as_stored(record: TensorRecord) -> Stored:
    """A tensor under its own name, which begins as that of any optimizer state where it is the optimizer's."""
    if not _CHAINED.match(record.name):
        return stored_record(record)
    return replace(stored_record(replace(record, name=ROOT + record.name)), key=record.name)


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
    """A stack of more parts than the configuration knows."""
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
