"""Megatron-LM's `torch_dist` checkpoints: DCP files, with names and a frame of their own.

A tensor's name is Megatron's, its chunks are read in place as those of DCP are.  A tensor
that stacks layers or experts has its chunks cut by them, so each layer and each expert is a
stored tensor to us, and so it is when written: the stack is made of names alone.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import numpy as np

from intarsia.errors import FormatError, few
from intarsia.family import Param, Table
from intarsia.format.base import Arrangement, Located, ReadEntries, WriteOptions, refuse_section
from intarsia.format.complaint import Complain, going_on, refuse
from intarsia.format.dcp.data_files import open_metadata
from intarsia.format.dcp.metadata import Metadata
from intarsia.format.megatron.common import (
    TRAIN_STATE,
    archive,
    arguments_of,
    common_in,
    lost_file,
    read_common,
    read_run_config,
)
from intarsia.format.megatron.configuration.settled_config import settle_config
from intarsia.format.megatron.detection import (
    BACKEND,
    check_backend,
    find_torch_dist,
    looks_like_megatron,
)
from intarsia.format.megatron.frame import COMMON_FILE, COMMON_OBJECT
from intarsia.format.megatron.hybrid import as_gpt, gpt_arguments
from intarsia.format.megatron.keys import Key, torch_dist_rows
from intarsia.format.megatron.named_tensors import MegatronTensors
from intarsia.format.megatron.optimizer.buffers import GATHERED, is_bucket
from intarsia.format.megatron.optimizer.eight_bits import layers_in_bf16
from intarsia.format.megatron.optimizer.groups import (
    SHARED,
    STEPS,
    groups_in,
    optimizer_of,
    steps_of,
    torch_groups,
)
from intarsia.format.megatron.optimizer.remainders import join_remainders, may_be_remainders
from intarsia.format.megatron.optimizer.state_tensors import stored_key
from intarsia.format.megatron.own_format import ARGS, MegatronFormat, arguments_alone
from intarsia.format.megatron.torch_dist.entries_to_write import entries_to_write
from intarsia.format.megatron.torch_dist.extra_states import empty_states
from intarsia.format.megatron.torch_dist.names import name_tensors
from intarsia.format.megatron.torch_dist.write import arrange
from intarsia.format.optimizer_state.parameter_groups import ParameterGroups, megatron_groups_count
from intarsia.format.request import EntriesToWrite, SourceWithEntries, Wanted
from intarsia.format.torch_file.plain import plain
from intarsia.mesh import Box, Mesh
from intarsia.planning.manifest import Chunk, Entry, Manifest, Stored, Target
from intarsia.planning.problem import Problem
from intarsia.state.names import ROOT, STEP, kind_of, state_among
from intarsia.store.reading.folder import Folder
from intarsia.value.bits import Bits, bits_dtype


class TorchDist(MegatronFormat):
    """The format `torch_dist`."""

    name = "torch_dist"
    carries_anything = False
    takes_rates = True
    kinds_of_values = (STEP,)

    def detect(self, path: PurePath) -> bool:
        return looks_like_megatron(path)

    def read(
        self,
        path: PurePath,
        config: Mapping[str, Any] | None,
        complain: Complain = refuse,
        section: Sequence[str] = (),
    ) -> Manifest:
        refuse_section(section, self.name)
        root = find_torch_dist(path)
        with Folder(root) as folder:
            with going_on(complain, BACKEND):
                check_backend(folder)
            metadata, sizes = open_metadata(folder, complain)
            common, shared, lost = {}, {}, list[Problem]()
            with going_on(complain):
                common = read_common(folder, metadata)
                lost += lost_file(folder, metadata)
            args = arguments_of(common) or gpt_arguments(read_run_config(folder))
            entries = _entries(folder, metadata, complain)
            with going_on(complain):
                shared = {
                    name: folder.read_small(*e.place)
                    for name, e in entries.items()
                    if SHARED.match(name)
                }
        gpt = as_gpt(metadata)
        settled = settle_config(config, args, gpt.metadata, root, complain)
        table = settled.table
        in_bf16 = layers_in_bf16(args)
        found = name_tensors(gpt.metadata, table, settled.config, str(root), complain, in_bf16)
        if gathered := [name for name in entries if GATHERED.match(name)]:
            found.cannot_name(_gathered(gathered, root), gathered, "in objects")
        parts: dict[str, Stored] = {}
        with going_on(complain):
            parts = self._joined(found, root, may_be_remainders(arguments_of(common)))
        groups: list[dict[str, Any]] = []
        steps: dict[str, Stored] = {}
        step_bytes = b""
        with going_on(complain):
            groups = groups_in(optimizer_of(common, shared))
            steps, step_bytes = steps_of(groups, found.stored.values(), found.logical, plain(args))
        counts = sorted({g["step"] for g in groups if isinstance(g.get("step"), (int, float))})
        if len(counts) > 1:
            at = " and ".join(f"{step:g}" for step in counts[:4])
            text = f"parameter groups are at different steps: {at}"
            found.problems.append(Problem("steps-disagree", (), (), text))
            if not steps:
                text = "parameter groups are at different steps, so no tensor's step is known"
                found.notes.append(text)
        found.count(steps)
        return Manifest(
            format=self.name,
            path=str(root),
            stored=gpt.with_names_on_disk(found.stored),
            logical=found.logical,
            copies=tuple(found.copies),
            files=sizes,
            family=table.family if table else None,
            config=settled.config,
            config_made=settled.made,
            config_doubts=settled.unsaid,
            entries=entries,
            in_memory_files={STEPS: step_bytes} if step_bytes else {},
            absent=found.absent,
            state_unclear=found.unclear,
            problems=(*found.problems, *lost),
            notes=(*gpt.notes, *settled.notes, *found.notes),
            parts=parts,
        )

    def _joined(self, found: MegatronTensors, root: PurePath, looking: bool) -> dict[str, Stored]:
        """The weights with which main weights are whole; `looking` at numbers that only seem to be."""
        with Folder(root) as folder:

            def read(stored: Stored, chunk: Chunk) -> Bits:
                at, size = (
                    self.locate(folder, stored, chunk),
                    chunk.box.size * stored.dtype.itemsize,
                )
                data = folder.read(chunk.file, at.start_bytes, size)
                return np.frombuffer(data, bits_dtype(stored.dtype))

            return join_remainders(found, read if looking else None)

    def locate(self, folder: Folder, stored: Stored, chunk: Chunk) -> Located:
        leading = _leading(stored)
        box = Box((0,) * leading + chunk.box.offsets, (1,) * leading + chunk.box.shape)
        return super().locate(folder, stored, replace(chunk, box=box))

    def front_kind(self, stored: Stored) -> Hashable:
        return _leading(stored)

    def rows(self, table: Table, dialect: str, mesh: Mesh, spec: str) -> Sequence[Param]:
        return torch_dist_rows(table, spec)

    def spell(self, name: str) -> str:
        return stored_key(name)

    def has_gaps(self, name: str) -> bool:
        # One in a chain has our prefix before its name on disk.
        return is_bucket(name) or is_bucket(name.removeprefix(ROOT))

    def left_out(self, name: str) -> str:
        if kind_of(name) == STEP:
            return "Megatron stores the step in the parameter groups; it is written there"
        return ""

    def counted(self, src: Manifest) -> tuple[str, ...]:
        if megatron_groups_count(src.entries):
            return ()
        return tuple(name for name in state_among(src.logical) if kind_of(name) == STEP)

    def groups(self, src: Manifest, entries: Mapping[str, bytes]) -> ParameterGroups | None:
        if stored_by_torch := super().groups(src, entries):
            return stored_by_torch
        common = common_in(entries)
        held = groups_in(optimizer_of(common, entries))
        return torch_groups(held, src.stored.values(), src.logical, plain(arguments_of(common)))

    def entries_to_write(self, src: SourceWithEntries, wanted: Wanted) -> EntriesToWrite:
        return entries_to_write(src, wanted)

    def entries_for_weights(self, src: Manifest, read: ReadEntries) -> Mapping[str, bytes]:
        kept = arguments_alone(src, read)
        return {COMMON_OBJECT: archive([{ARGS: Namespace(**kept)}])} if kept else {}

    def arrange(self, targets: Sequence[Target], options: WriteOptions) -> Arrangement:
        return arrange(targets, options)


def _gathered(names: Sequence[str], root: PurePath) -> FormatError:
    return FormatError(
        f"{root} holds the optimizer's state in {len(names)} objects, as Megatron gathers it on one rank"
        f" (`dp_zero_gather_scatter`): {few(names, 2)}",
        hint="save again with --dist-ckpt-optim-fully-reshardable, or convert with --optimizer drop",
        tensors=tuple(names),
    )


def _leading(stored: Stored) -> int:
    """How many axes of the tensor on disk are fixed in what we call a stored tensor."""
    disk, ours = Key.parse(stored.key), Key.parse(stored.name)
    return (disk.stacked and not ours.stacked) + (disk.of_experts and not ours.of_experts)


def _entries(folder: Folder, metadata: Metadata, complain: Complain) -> dict[str, Entry]:
    """The objects beside the tensors, but for extra states that say nothing."""
    empty = set[str]()
    with going_on(complain):
        empty = empty_states(folder, metadata.objects)
    entries = {o.name: o for o in metadata.objects.values() if o.name not in empty}
    if folder.has(TRAIN_STATE):
        entries[TRAIN_STATE] = Entry(TRAIN_STATE, TRAIN_STATE, 0, folder.size(TRAIN_STATE))
    if folder.has(COMMON_FILE):  # Megatron reads the file where both are there, and so do we
        entries[COMMON_OBJECT] = Entry(COMMON_OBJECT, COMMON_FILE, 0, folder.size(COMMON_FILE))
    return entries
