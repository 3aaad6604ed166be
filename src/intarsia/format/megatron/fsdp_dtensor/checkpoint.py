"""Megatron-FSDP's `fsdp_dtensor` checkpoints: a state dict of live modules, saved by DCP.

    SAVE/latest_checkpointed_iteration.txt
    SAVE/iter_0000010/  .metadata  __<rank>_0.distcp ...

Only its keys tell such a folder from any other of DCP.  The model section holds the fp32 main
weights, so each of its tensors is seen twice: as the weight, and as `optimizer.master` of it
where the checkpoint holds optimizer state at all.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from intarsia.errors import FormatError
from intarsia.family import Param, Table
from intarsia.format.base import Arrangement, ReadEntries, WriteOptions, refuse_section
from intarsia.format.complaint import Complain, going_on, refuse
from intarsia.format.dcp import archives
from intarsia.format.dcp.data_files import open_metadata
from intarsia.format.dcp.metadata import Metadata
from intarsia.format.megatron.common import archive, whole_argument
from intarsia.format.megatron.configuration.settled_config import settle_config
from intarsia.format.megatron.detection import find_fsdp_dtensor, is_fsdp_dtensor
from intarsia.format.megatron.fsdp_dtensor.entries import (
    entries_of,
    groups_by_parameter,
    is_entry,
    saved_arguments,
    steps_in_groups,
)
from intarsia.format.megatron.fsdp_dtensor.keys import TensorParallel, is_numbered, section_of
from intarsia.format.megatron.fsdp_dtensor.names import as_torch_dist, name_tensors
from intarsia.format.megatron.fsdp_dtensor.write import (
    arrange,
    fsdp_dtensor_rows,
    fsdp_dtensor_targets,
    spell,
)
from intarsia.format.megatron.hybrid import as_gpt
from intarsia.format.megatron.optimizer.groups import STEPS
from intarsia.format.megatron.own_format import ARGS, MegatronFormat, arguments_alone
from intarsia.format.optimizer_state.numbered_state import (
    NumberedState,
    group_lists,
    parameters_by_number,
)
from intarsia.format.optimizer_state.optimizer_names import is_numbered_name, unnumbered_error
from intarsia.format.optimizer_state.parameter_groups import ParameterGroups
from intarsia.format.request import EntriesToWrite, Request, SourceWithEntries, Wanted
from intarsia.mesh import Mesh
from intarsia.planning.manifest import Manifest, Stored, Target
from intarsia.planning.problem import Problem
from intarsia.store.reading.folder import Folder


class FsdpDtensor(MegatronFormat):
    """The format `fsdp_dtensor`."""

    name = "fsdp_dtensor"
    main_weights_in_place = True

    def detect(self, path: PurePath) -> bool:
        return is_fsdp_dtensor(path)

    def read(
        self,
        path: PurePath,
        config: Mapping[str, Any] | None,
        complain: Complain = refuse,
        section: Sequence[str] = (),
    ) -> Manifest:
        refuse_section(section, self.name)
        root = find_fsdp_dtensor(path)
        with Folder(root) as folder:
            metadata, sizes = open_metadata(folder, complain)
            if as_gpt(metadata).on_disk:
                raise FormatError(
                    f"{root} is a HybridModel's, which is read from torch_dist alone",
                    hint="load it in Megatron-LM and save it with --ckpt-format torch_dist",
                )
            args: Mapping[str, Any] = {}
            with going_on(complain):
                args = saved_arguments(folder, metadata)
            numbers, unclear = _numbers(folder, metadata)
        settled = settle_config(config, args, as_torch_dist(metadata), root, complain)
        config, table = settled.config, settled.table
        tensors = [r for r in metadata.tensors.values() if not is_entry(r.name)]
        found = name_tensors(tensors, table, tensor_parallel(args), config, numbers, complain)
        if unclear:
            numbered = tuple(n for n in found.stored if is_numbered_name(n))
            found.problems.append(Problem("elements-missing", numbered, (), unclear.brief))
        step_bytes = b""
        with Folder(root) as folder, going_on(complain):
            found.problems += _disagreements(folder, found.repeated)
            steps, step_bytes = steps_in_groups(folder, metadata, found.stored)
            found.count(steps)
        return Manifest(
            format=self.name,
            path=str(root),
            stored=found.stored,
            logical=found.logical,
            files=sizes,
            family=table.family if table else None,
            config=config,
            config_made=settled.made,
            config_doubts=settled.unsaid,
            entries=entries_of(metadata),
            in_memory_files={STEPS: step_bytes} if step_bytes else {},
            absent=found.absent,
            problems=tuple(found.problems),
            state_unclear=unclear,
            notes=(*settled.notes, *_absent_entries(metadata), *found.notes),
        )

    def rows(self, table: Table, dialect: str, mesh: Mesh, spec: str) -> Sequence[Param]:
        return tuple(fsdp_dtensor_rows(table, spec=spec))

    def spell(self, name: str) -> str:
        return spell(name)

    def targets(self, src: Manifest, request: Request) -> Wanted:
        return fsdp_dtensor_targets(src, self.table(src), request)

    def groups(self, src: Manifest, entries: Mapping[str, bytes]) -> ParameterGroups | None:
        stored_by_torch = super().groups(src, entries)
        return stored_by_torch or groups_by_parameter(entries, src.stored.values(), src.logical)

    def entries_to_write(self, src: SourceWithEntries, wanted: Wanted) -> EntriesToWrite:
        return EntriesToWrite(src.entries)

    def entries_for_weights(self, src: Manifest, read: ReadEntries) -> Mapping[str, bytes]:
        kept = arguments_alone(src, read)
        return {ARGS: archive(Namespace(**kept))} if kept else {}

    def arrange(self, targets: Sequence[Target], options: WriteOptions) -> Arrangement:
        return arrange(targets, options)


def _numbers(folder: Folder, metadata: Metadata) -> tuple[dict[str, str], FormatError | None]:
    """The parameters of numbered states, and why they are not known where they are not."""
    sections = {name: section_of(name) for name in (*metadata.paths, *metadata.tensors)}
    tensors = metadata.tensors
    states = [
        NumberedState(name, section.name, tensors[name].shape)
        for name, section in sections.items()
        if section and is_numbered(section) and name in tensors
    ]
    if not states:
        return {}, None
    order = {
        section.name: tensors[name].shape
        for name, section in sections.items()
        if section and not section.kind and name in tensors and tensors[name].dtype.floating
    }
    try:
        groups = group_lists(folder, metadata, "optimizer.")
        return parameters_by_number(states, groups, order, _canonical), None
    except FormatError as why:
        return {}, unnumbered_error(str(why), str(folder.root))


def _canonical(name: str) -> str:
    section = section_of(f"model.{name}")
    return section.name if section else name


def tensor_parallel(args: Mapping[str, Any]) -> TensorParallel:
    """How many tensor-parallel ranks saved a checkpoint, by its arguments."""
    dense = whole_argument(args, "tensor_model_parallel_size")
    expert = whole_argument(args, "expert_tensor_parallel_size")
    return TensorParallel(dense, dense if expert is None else expert)


def _absent_entries(metadata: Metadata) -> list[str]:
    lost = " and no ".join(n for n in ("args", "iteration") if n not in metadata.objects)
    return [f"holds no {lost}, as in converted checkpoints: none is assumed"] if lost else []


def _disagreements(folder: Folder, repeated: Sequence[tuple[Stored, Stored]]) -> Iterator[Problem]:
    """The counters of one parameter's parts that are not equal; the first of each is kept."""
    for kept, other in repeated:
        held = [_content(folder, stored) for stored in (kept, other)]
        if held[0] != held[1]:
            names = kept.on_disk, other.on_disk
            files = tuple(dict.fromkeys(c.file for s in (kept, other) for c in s.chunks))
            text = f"`{names[0]}` and `{names[1]}` count one tensor's steps, and differ"
            yield Problem("steps-disagree", names, files, text)


def _content(folder: Folder, stored: Stored) -> bytes:
    found = [(archives.locate(folder, stored, chunk), chunk) for chunk in stored.chunks]
    size = stored.dtype.itemsize
    return b"".join(folder.read(c.file, at.start_bytes, c.box.size * size) for at, c in found)
