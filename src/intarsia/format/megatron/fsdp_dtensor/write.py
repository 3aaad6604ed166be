"""Writing an `fsdp_dtensor` checkpoint: which tensors it holds, and where their bytes go.

    DST/latest_checkpointed_iteration.txt
    DST/config.json and other small files, which the caller writes
    DST/iter_0000001/  .metadata  __<rank>_0.distcp ...

The model section holds main weights where the source has them, and then the rounded weights are
left out: they follow from the main ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import gcd

from intarsia.dtypes import DType
from intarsia.errors import FamilyError, UsageError, few
from intarsia.family import Param, Table, table_for
from intarsia.format.base import Arrangement, WriteOptions
from intarsia.format.dcp.metadata import METADATA, Metadata, TensorRecord
from intarsia.format.dcp.metadata_write import write_metadata
from intarsia.format.dcp.write import Files, cut_by, place_all
from intarsia.format.megatron.common import iteration_to_resume, note_on_loading, note_on_queries
from intarsia.format.megatron.configuration.command_line import note_on_options
from intarsia.format.megatron.configuration.written_arguments import (
    DIVISIBLE_BY,
    norms_are_centered,
    note_on_norms,
)
from intarsia.format.megatron.frame import TRACKER
from intarsia.format.megatron.fsdp_dtensor.entries import arguments_among, path_of, tensor_in
from intarsia.format.megatron.fsdp_dtensor.entries_to_write import written_entries
from intarsia.format.megatron.fsdp_dtensor.keys import (
    GROUP,
    MODEL,
    WRAPPERS,
    gated_parts,
    group_of,
    live,
    section_of,
)
from intarsia.format.megatron.keys import VOCABULARY, padded, rows_of_spec, smallest_parts
from intarsia.format.megatron.optimizer.state_tensors import state_row
from intarsia.format.optimizer_state.parameter_groups import has_megatron_groups, has_torch_groups
from intarsia.format.optimizer_state.single_numbers import no_place_for, other_shape
from intarsia.format.request import Request, Wanted
from intarsia.format.torch_file.torch_zip import read_object
from intarsia.format.written_tensors import tensors_left_out, written_type
from intarsia.layout import Layout
from intarsia.mesh import Box, Mesh
from intarsia.planning.inventory import Reason
from intarsia.planning.manifest import Chunk, Entry, Manifest, Target
from intarsia.state.names import (
    MASTER,
    SETTING,
    STEP,
    StateName,
    is_state,
    kind_of,
    master_of,
    step_of,
)


def fsdp_dtensor_rows(
    table: Table, *, spec: str = "te", vocabulary: int | None = None
) -> Iterator[Param]:
    """The model's tensors as Megatron-FSDP keeps them, under their live names.

    `vocabulary` is the number of rows to which embedding and head are padded.
    """
    for row in rows_of_spec(table, spec):
        if vocabulary is not None and row.name.endswith(VOCABULARY):
            row = padded(row, (vocabulary, *row.layout.shape[1:]))
        for key, part in smallest_parts(row, gated_parts):
            yield replace(part, name=live(str(key), spec))


def fsdp_dtensor_targets(src: Manifest, table: Table | None, request: Request) -> Wanted:
    """What an `fsdp_dtensor` checkpoint of a source's tensors holds on a mesh.

    Main weights go into the model section, and fused parameters have one counter for all parts.
    """
    mesh, keeps = request.mesh, request.optimizer == "keep"
    if mesh.pp > 1:
        raise UsageError(
            f"fsdp_dtensor has no pipeline stages, the mesh has pp={mesh.pp}",
            hint="Megatron-FSDP shards layers instead of distributing them over stages: leave pp out",
        )
    drop = dict(tensors_left_out(src, table.tied if table else {}, request.optimizer))
    writer = _Writer(src, request, drop)
    kinds = sorted({*map(kind_of, writer.held)} - {"", SETTING, MASTER, STEP})
    for row in _rows(src, table, request.spec, mesh):
        writer.weight(row)
        for kind in kinds:
            writer.state(row, kind)
        writer.step(row)
    for names in writer.equal:
        for name in names[1:]:
            if name not in writer.steps:
                drop[name] = Reason(f"equal to `{names[0]}`: a fused parameter has one counter")
    notes = (*_vocabulary_notes(src, writer.targets, mesh),)
    if keeps and has_torch_groups(src.entries) and not has_megatron_groups(src.entries):
        notes += (
            "parameter groups are kept in torch's form, which Megatron does not read: a run"
            " that continues uses its own settings",
        )
    equal, rounded = tuple(writer.equal), tuple(writer.rounded)
    return Wanted(tuple(writer.targets), drop, keeps, notes, equal, rounded)


def _rows(src: Manifest, table: Table | None, spec: str, mesh: Mesh) -> Iterator[Param]:
    """The family's rows that the source has or must have, then what no table explains."""
    covered = {*table.tied} if table else set()  # left out, and compared with their twins
    missed = {x.name for x in src.absent}
    if table is not None:
        spare = table.optional - missed
        for row in fsdp_dtensor_rows(table, spec=spec, vocabulary=_vocabulary(src, mesh)):
            names = row.layout.tensors
            if all(n in spare and n not in src.logical for n in names):
                continue
            covered.update(names)
            if not all(n in table.tied for n in names):
                yield row
    rest = [n for n in src.logical if n not in covered and not is_state(n)]
    if table is not None and src.format != "fsdp_dtensor":
        lost = [n for n in rest if not table.is_beside_the_text(n)]
        if lost:
            raise FamilyError(
                f"{len(lost)} tensors of {src.path} are not in the Megatron table of"
                f" {table.family}: {few(lost, 4)}",
                hint="convert to hf or dcp, which carry them name by name, or add them to the table",
            )
    for name in rest:
        rule = src.sources[name][0].rule
        yield Param(name, Layout.of(name, src.logical[name].shape), rule)


def _vocabulary(src: Manifest, mesh: Mesh) -> int | None:
    """The padded vocabulary of a source that pads it, as far as the mesh divides it."""
    for stored in src.stored.values():
        if stored.name.endswith(VOCABULARY) and stored.layout.mapped < stored.layout.size:
            return -(-stored.shape[0] // mesh.tp) * mesh.tp
    return None


def _vocabulary_notes(src: Manifest, targets: Iterable[Target], mesh: Mesh) -> Iterator[str]:
    """The option that keeps a run from padding its vocabulary otherwise, where it would."""
    table = next((t for t in targets if t.name.endswith(VOCABULARY)), None)
    if table is None:
        return
    rows, multiple = table.shape[0], DIVISIBLE_BY * mesh.tp
    tokens = table.layout.mapped // (table.layout.size // rows)
    if rows % mesh.tp:
        yield (
            f"tp={mesh.tp} does not divide the {rows:,} rows of the vocabulary, and Megatron-FSDP loads no embedding"
            " of another size: give the embedding more rows before the conversion, or continue with a tp that"
            " divides them and --make-vocab-size-divisible-by 1"
        )
    elif tokens < rows:
        # Only a multiple of all rows pads fewer tokens to just these, whatever their number.
        if -(-tokens // multiple) * multiple != rows:
            yield (
                f"the vocabulary of {tokens:,} tokens is written with the {rows:,} rows to which it is padded,"
                " and Megatron-FSDP loads no embedding of another size: continue with"
                f" --make-vocab-size-divisible-by {rows // mesh.tp}"
            )
    elif src.format != "fsdp_dtensor" and rows % multiple:
        yield (
            f"Megatron pads the {rows:,} rows of the vocabulary to a multiple of {multiple}, and with"
            " Megatron-FSDP loads no embedding of another size: continue with"
            f" --make-vocab-size-divisible-by {gcd(rows // mesh.tp, DIVISIBLE_BY)}"
        )


class _Writer:
    """Targets of one checkpoint, parameter by parameter.

    `equal` are the counters of which one stands for all, `rounded` the weights that must be their main
    weights rounded, since those are written.
    """

    def __init__(self, src: Manifest, request: Request, drop: dict[str, Reason]) -> None:
        self.src, self.mesh, self.dtype, self.drop = src, request.mesh, request.dtype, drop
        self.held = {name for name in src.logical if name not in drop}
        self.targets: list[Target] = []
        self.equal: list[tuple[str, ...]] = []
        self.rounded: list[str] = []
        self.steps: set[str] = set()

    def weight(self, row: Param) -> None:
        names = row.layout.tensors
        name = spell(row.name)
        masters = [*map(master_of, names)]
        if not names or not self.src.logical.keys() >= set(masters):
            self._add(name, row, self.dtype)
            return
        if {self.src.logical[n].dtype for n in names if n in self.src.logical} == {self.dtype}:
            self._add(name, row, None)
            why = f"{self.dtype} was asked for, and the weights are stored in it"
            self.drop |= dict.fromkeys(masters, Reason(why, lost=True))
            return
        self._add(name, replace(state_row(row, MASTER), name=row.name), self.dtype)
        for n, master in zip(names, masters, strict=True):
            self.drop.pop(master, None)
            if n in self.src.logical:
                self.drop[n] = Reason("its fp32 main weight is stored in its place")
                self.rounded.append(n)

    def state(self, row: Param, kind: str) -> None:
        twin = state_row(row, kind)
        if twin.layout.tensors and self.held.issuperset(twin.layout.tensors):
            if odd := other_shape(twin.layout.tensors, row, self.src.logical):
                raise no_place_for(odd, self.src.logical[odd].shape, row, "fsdp_dtensor")
            self._add(spell(twin.name), twin, None)

    def step(self, row: Param) -> None:
        names = tuple(map(step_of, row.layout.tensors))
        if not names or not self.held.issuperset(names):
            return
        layout = Layout.of(names[0], self.src.logical[names[0]].shape)
        rule = replace(row.rule, tp=None)
        self._add(spell(step_of(row.name)), Param(row.name, layout, rule), None)
        self.steps.add(names[0])
        if len(names) > 1:
            self.equal.append(names)

    def _add(self, name: str, row: Param, dtype: DType | None) -> None:
        kept = written_type(name, row.layout.tensors, self.src, dtype)
        boxes = self.mesh.boxes(row.layout.shape, row.rule)
        self.targets.append(Target(name, kept, row.layout, boxes, row.rule, row.value))


def spell(name: str) -> str:
    """A tensor's key: the model's by its live name, optimizer state by parameter, then kind.

    >>> spell("optimizer.exp_avg.decoder.final_layernorm.weight")
    'optimizer.state.module.module.module.decoder.final_layernorm.weight.exp_avg'
    """
    state = StateName.of(name)
    if state is None:
        return MODEL + name
    return replace(state, parameter=WRAPPERS + state.parameter).as_torch


def arrange(targets: Sequence[Target], options: WriteOptions) -> Arrangement:
    """The files of a checkpoint whose tensors are cut as the mesh asks; some entries are tensors too."""
    entries = written_entries(targets, options)
    iteration = iteration_to_resume(read_object(entries["iteration"], "iteration"))
    folder = f"iter_{iteration:07d}/"
    files = Files(options.mesh.size, folder)
    slots, tensors = place_all(files, cut_by(options.mesh, targets))
    objects: dict[str, Entry] = {}
    in_group = cache(partial(tensor_in, GROUP))  # settings repeat for every parameter
    for name, data in entries.items():
        record = files.append(name, data)
        held = in_group(data) if name.startswith(GROUP) else tensor_in(name, data)
        if held is None:
            objects[name] = record
            continue
        whole = Chunk(Box.whole(held.shape), *record.place)
        tensors[name] = TensorRecord(name, held.dtype, held.shape, (whole,))
    paths = {name: path_of(name) for name in (*tensors, *objects)}
    closing = {
        folder + METADATA: write_metadata(Metadata(tensors, objects, paths, {})),
        TRACKER: str(iteration).encode(),
    }
    remarks = (*_remarks(entries, targets), *_on_arguments(entries, targets, options))
    return Arrangement(files.sizes, slots, files.fixed, closing, remarks, folder)


def _on_arguments(
    entries: Mapping[str, bytes], targets: Sequence[Target], options: WriteOptions
) -> Iterator[str]:
    """What the arguments of the source say otherwise; where it has none, what a run has to be given beside those written."""
    table, old = table_for(options.config), arguments_among(options.entries)
    centered = norms_are_centered(table, targets) if table else None
    if not old:
        shapes = {t.name: t.layout.shape for t in targets}
        yield from note_on_options(arguments_among(entries), shapes)
    elif centered is not None:
        yield from note_on_norms(old, centered)


def _remarks(entries: Collection[str], targets: Iterable[Target]) -> Iterator[str]:
    """What Megatron-LM asks for and the source does not hold."""
    yield from note_on_queries(t.name for t in targets)
    yield from note_on_loading(entries)
    trained = {s.parameter for t in targets if (s := section_of(t.name)) and s.kind}
    untold = sorted(trained - {of[0] for name in entries if (of := group_of(name))})
    if untold and has_megatron_groups(entries) and not has_torch_groups(entries):
        yield (
            f"{len(untold)} parameters have no parameter group (`param_to_group_meta`), and Megatron-LM asks for"
            f" them: the source's groups do not say whose they are ({few(untold, 4)})"
        )
    if has_torch_groups(entries) and not any(name.startswith(GROUP) for name in entries):
        yield (
            "the source's parameter groups have torch's form and are kept as they are: Megatron-LM"
            " needs its own form (`param_to_group_meta`); to resume, convert to torch_dist"
        )
