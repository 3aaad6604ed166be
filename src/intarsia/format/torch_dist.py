"""Megatron-LM's `torch_dist` checkpoints: DCP files, with names and a frame of their own.

A tensor's name is Megatron's, its chunks are read in place as those of DCP are.  A tensor
that stacks layers or experts has its chunks cut by them, so each layer and each expert is a
stored tensor to us, and so it is when written: the stack is made of names alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from intarsia.errors import FamilyError, FormatError
from intarsia.family import Param, Table, table_for
from intarsia.format import dcp
from intarsia.format.base import Arrangement, Located, WriteOptions
from intarsia.format.dcp import open_metadata, stored_of
from intarsia.format.dcp_metadata import Metadata, TensorRecord
from intarsia.format.megatron_buckets import is_bucket, read_buckets
from intarsia.format.megatron_common import (
    COMMON_FILE,
    COMMON_OBJECT,
    arguments_of,
    find_checkpoint,
    home_of,
    looks_like_megatron,
    read_common,
    read_run_config,
    sides_at,
)
from intarsia.format.megatron_config import config_from_arguments
from intarsia.format.megatron_groups import (
    SHARED,
    STEPS,
    groups_in,
    optimizer_of,
    steps_of,
    with_common_step,
)
from intarsia.format.megatron_keys import Key, MegatronRows, is_megatron_name, torch_dist_rows
from intarsia.format.megatron_optimizer import (
    flatten_shards,
    flattened_shape,
    state_of,
    state_row,
    stored_key,
)
from intarsia.format.megatron_write import arrange
from intarsia.format.sides import config_of
from intarsia.format.torch_frame import write_object
from intarsia.mesh import Box, Mesh, Shape
from intarsia.planning.manifest import Chunk, Entry, Logical, Manifest, Stored, Target
from intarsia.store.local import Folder


class TorchDist:
    """The format `torch_dist`."""

    name = "torch_dist"
    dialects: tuple[str, ...] = ("megatron",)
    sharded = True
    carries_anything = False

    def detect(self, path: Path) -> bool:
        return looks_like_megatron(path)

    def read(self, path: Path, config: Mapping[str, Any] | None) -> Manifest:
        root = find_checkpoint(path)
        with Folder(root) as folder:
            metadata, sizes = open_metadata(folder)
            common = read_common(folder, metadata)
            args = arguments_of(common) or read_run_config(folder)
            entries = _entries(folder, metadata)
            shared = {
                name: folder.read_small(e.file, e.start_bytes, e.length_bytes)
                for name, e in entries.items()
                if SHARED.match(name)
            }
        home = home_of(root)
        notes: list[str] = []
        if config is None and home is not None:
            config = config_of(home)
        made = config is None
        if config is None:
            config = config_from_arguments(args, metadata, notes)
        found = _named(metadata, config, args, str(root))
        groups = groups_in(optimizer_of(common, shared))
        with_common_step(groups, common)
        steps, told = steps_of(groups, found.stored.values())
        if len({g["step"] for g in groups if "step" in g}) > 1 and not steps:
            found.notes += (
                "parameter groups are at different steps, so no tensor's step is known",
            )
        found.stored |= steps
        found.logical |= {name: Logical(name, s.shape, s.dtype) for name, s in steps.items()}
        return Manifest(
            format=self.name,
            path=str(root),
            stored=found.stored,
            logical=found.logical,
            files=sizes,
            family=found.family,
            config=config,
            config_made=made,
            entries=entries,
            told={STEPS: told} if told else {},
            sides=sides_at(home),
            absent=found.absent,
            problems=found.problems,
            notes=(*notes, *found.notes),
        )

    def locate(self, folder: Folder, stored: Stored, chunk: Chunk) -> Located:
        if chunk.file == STEPS:
            return Located(chunk.start_bytes)
        leading = _leading(stored)
        box = Box((0,) * leading + chunk.box.offsets, (1,) * leading + chunk.box.shape)
        return dcp.locate(folder, stored, replace(chunk, box=box))

    def rows(self, table: Table, dialect: str, mesh: Mesh, spec: str) -> Sequence[Param]:
        return torch_dist_rows(table, mesh, spec=spec)

    def spell(self, name: str) -> str:
        return stored_key(name)

    def arrange(self, targets: Sequence[Target], options: WriteOptions) -> Arrangement:
        return arrange(targets, options)


def _leading(stored: Stored) -> int:
    """How many axes of the tensor on disk are fixed in what we call a stored tensor."""
    disk, ours = Key.parse(stored.key), Key.parse(stored.name)
    return (disk.stacked and not ours.stacked) + (disk.of_experts and not ours.of_experts)


_EMPTY_STATE_BYTES = len(write_object([None]))


def _entries(folder: Folder, metadata: Metadata) -> dict[str, Entry]:
    """The objects beside the tensors, but for extra states that say nothing."""
    entries = {
        o.name: Entry(o.name, o.file, o.start_bytes, o.length_bytes)
        for o in metadata.objects.values()
        if "._extra_state/" not in o.name or o.length_bytes != _EMPTY_STATE_BYTES
    }
    if COMMON_OBJECT not in entries and (folder.root / COMMON_FILE).is_file():
        entries[COMMON_OBJECT] = Entry(COMMON_OBJECT, COMMON_FILE, 0, folder.size(COMMON_FILE))
    return entries


@dataclass
class _Found:
    """Stored tensors, and what their names told."""

    stored: dict[str, Stored] = field(default_factory=dict)
    logical: dict[str, Logical] = field(default_factory=dict)
    family: str | None = None
    absent: tuple[Logical, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def add(self, stored: Stored) -> None:
        if stored.name in self.stored:
            raise FamilyError(f"`{self.stored[stored.name].key}` and `{stored.key}` are the same")
        self.stored[stored.name] = stored


def _named(
    metadata: Metadata, config: Mapping[str, Any] | None, args: Mapping[str, Any], where: str
) -> _Found:
    centered = args.get("layernorm_zero_centered_gamma")
    table = table_for(config, zero_centered=centered if isinstance(centered, bool) else None)
    found = _Found()
    if table is None:
        for record in metadata.tensors.values():
            found.add(stored_of(record))
        for s in found.stored.values():
            found.logical[s.name] = Logical(s.name, s.shape, s.dtype)
        why = "no config.json, and the stored arguments do not tell the family"
        if config is not None:
            why = f"model_type {config.get('model_type')!r} has no table"
        found.notes = (f"{why}: each stored tensor is carried name by name; --config gives one",)
        return found
    _with_table(found, metadata, table, where)
    return found


def _with_table(found: _Found, metadata: Metadata, table: Table, where: str) -> None:
    rows = MegatronRows(table)
    unknown: list[str] = []
    carried: list[str] = []
    for record in metadata.tensors.values():
        if is_bucket(record.name):
            continue
        parts = list(_read(record, rows, metadata.extra))
        if not parts:
            foreign = not is_megatron_name(record.name)
            (carried if foreign else unknown).append(record.name)
            parts = [stored_of(record)]
        for stored in parts:
            found.add(stored)
    if carried:
        found.notes += (
            f"not of the language model, carried name by name: {', '.join(carried[:4])}"
            + (f", … ({len(carried)} in all)" if len(carried) > 4 else ""),
        )
    if unknown:
        raise FamilyError(
            f"{len(unknown)} tensors are not in the Megatron table of {table.family}:"
            f" {', '.join(unknown[:4])} - at {where}",
            hint="the configuration is another model's, or the family's table lacks them",
        )
    _add_buckets(found, [r for r in metadata.tensors.values() if is_bucket(r.name)], where)
    found.family = table.family
    found.logical = _logical(found.stored.values(), table.logical)
    floating = next((s.dtype for s in found.stored.values() if s.dtype.floating), None)
    found.absent = tuple(
        Logical(name, shape, floating)
        for name, shape in table.logical.items()
        if floating and name not in found.logical and name not in table.optional
    )
    found.problems += tuple(f"`{x.name}` {list(x.shape)} is absent" for x in found.absent)


def _add_buckets(found: _Found, buckets: list[TensorRecord], where: str) -> None:
    """Optimizer state out of buckets; where it cannot be found in them, the rest is still read."""
    if not buckets:
        return
    try:
        for stored in read_buckets(buckets, list(found.stored.values()), where):
            found.add(stored)
        found.notes += ("optimizer state is read out of Megatron's buckets, where it fits exactly",)
    except FormatError as error:
        for record in buckets:
            found.add(stored_of(record))
        found.problems += (f"optimizer state stays in Megatron's buckets: {error}",)
        found.notes += (f"{len(buckets)} buckets of optimizer state are carried as they are",)


def _logical(stored: Iterable[Stored], shapes: Mapping[str, Shape]) -> dict[str, Logical]:
    found: dict[str, Logical] = {}
    for s in stored:
        for name in s.layout.tensors:
            if name not in found:
                of = name.split(".", 2)[2] if name.startswith("optimizer.") else name
                found[name] = Logical(name, shapes.get(of, s.shape), s.dtype)
    return found


def _read(record: TensorRecord, rows: MegatronRows, extra: Mapping[str, Any]) -> Iterator[Stored]:
    """The stored tensors that a tensor on disk is; none where the table does not know it."""
    state = state_of(record.name)
    name = rows.bare(state[1] if state else record.name)
    for key, shape, chunks in _parts(record, Key.parse(name)):
        flat = (
            flattened_shape(extra, record.name, len(record.shape) - len(shape)) if state else None
        )
        row = rows.find(key, flat or shape)
        if row is None:
            return
        row = Param(str(key), row.layout, row.rule, row.shift)
        if flat is not None:
            row = flatten_shards(row, shape, record.name)
        if state is not None:
            row = state_row(row, state[0])
        yield Stored(row.name, record.dtype, row.layout, chunks, row.rule, record.name, row.shift)


def _parts(record: TensorRecord, key: Key) -> Iterator[tuple[Key, Shape, tuple[Chunk, ...]]]:
    """A tensor cut by its layers and experts, as far as no chunk spans two of them."""
    leading = 0
    for axis_is in (key.stacked, key.of_experts):
        if not axis_is:
            continue
        if any(c.shape[leading] != 1 for c in record.chunks):
            break
        leading += 1
    held: dict[Shape, list[Chunk]] = {}
    for c in record.chunks:
        box = Box(c.offsets[leading:], c.shape[leading:])
        chunk = Chunk(box, c.file, c.start_bytes, c.length_bytes)
        held.setdefault(c.offsets[:leading], []).append(chunk)
    for index in product(*map(range, record.shape[:leading])):
        places = iter(index)
        layer = next(places) if key.stacked and leading else key.layer
        expert = next(places, key.expert)
        part = Key(key.rest, key.head, layer, expert, key.half)
        yield part, record.shape[leading:], tuple(held.get(index, ()))
