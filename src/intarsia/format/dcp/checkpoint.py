"""`torch.distributed.checkpoint` folders: `.metadata`, and `__<rank>_<n>.distcp` files.

Each chunk of a tensor is a whole `torch.save` archive inside a `.distcp` file.  Its elements
are read in place, by their byte offsets; no pickle is executed and torch is not imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from intarsia.errors import FormatError, few
from intarsia.family import table_for
from intarsia.format.base import Arrangement, HeldTarget, WriteOptions
from intarsia.format.complaint import Complain, Complaint, going_on, refuse
from intarsia.format.dcp.accelerate import below, is_accelerate, model_subfolders, saved_apart
from intarsia.format.dcp.archives import Archives, stored_record
from intarsia.format.dcp.data_files import open_metadata
from intarsia.format.dcp.entries import entries_of, with_given
from intarsia.format.dcp.metadata import METADATA, Metadata
from intarsia.format.dcp.parameters_of_state import StateParameters, parameters_of_state
from intarsia.format.dcp.write import arrange, file_of, lay_out
from intarsia.format.folder.side_files import HEADERS
from intarsia.format.folder.stored_config import choose_config
from intarsia.format.hf.safetensors_metadata import as_file, kept_metadata
from intarsia.format.naming.logical_names import divided, name_tensors
from intarsia.format.naming.quantised_names import MODELOPT, modelopt_of
from intarsia.format.naming.section import TOP
from intarsia.format.naming.sections import Sections
from intarsia.planning.manifest import Manifest, SavedStateDict, Target
from intarsia.state.names import StateName
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import exists, is_file, is_folder, names_like, size_of


class Dcp(Archives):
    """The format `dcp`."""

    name = "dcp"
    keeps_keys = True
    header_metadata = True
    flat_groups = True

    def detect(self, path: PurePath) -> bool:
        return is_file(path / METADATA) or is_accelerate(path)

    def read(
        self,
        path: PurePath,
        config: Mapping[str, Any] | None,
        complain: Complain = refuse,
        section: Sequence[str] = (),
    ) -> Manifest:
        metadata, sizes, said = _open(path, complain)
        if not metadata.tensors:
            raise _no_tensors(path, metadata)
        with going_on(complain, "config.json"):
            config = choose_config(config, path)
        modelopt = None
        with going_on(complain, MODELOPT):
            modelopt = modelopt_of(path)
        metadata_kept: dict[str, str] = {}
        with going_on(complain, HEADERS):
            metadata_kept = kept_metadata(path)
        saved = metadata if TOP in section else None
        metadata = with_given(metadata)
        objects, paths = metadata.objects, metadata.paths
        tensors = {s.name: s for s in map(stored_record, metadata.tensors.values())}
        sections = divided(tensors, config, str(path), section, objects=objects, paths=paths)
        of_state = StateParameters({})
        with Folder(path) as folder:
            with going_on(complain):
                of_state = parameters_of_state(
                    folder, metadata, sections, table_for(config), section
                )
            if of_state.whose is not None:
                sections = replace(sections, optimizer=None, unclear=of_state.whose)
            entries, in_memory_files = entries_of(folder, metadata, sections, of_state.names)
        named = name_tensors(
            tensors,
            config,
            str(path),
            complain,
            modelopt,
            sections=sections,
            numbers=of_state.names,
        )
        return Manifest(
            format=self.name,
            path=str(path),
            stored=named.stored,
            logical=named.logical,
            files=sizes,
            family=named.family,
            config=config,
            entries=entries,
            in_memory_files=in_memory_files,
            inventory=named.inventory,
            absent=named.absent,
            problems=named.problems,
            notes=(*named.notes, *said, *_remarks(of_state)),
            section=tuple(section),
            saved=_as_saved(saved, sections) if saved else None,
            state_unclear=of_state.unclear or named.unclear,
            state_by_order=of_state.by_order,
            quantised=named.quantised,
            metadata=metadata_kept,
        )

    def spell(self, name: str) -> str:
        return spell(name)

    def unfinished(self, path: PurePath) -> Complaint | None:
        """Data files that lack their metadata, in the folder or in one of its iterations."""
        for folder in (path, *names_like(path, "iter_*")) if is_folder(path) else ():
            files, metadata = names_like(folder, "*.distcp"), folder / METADATA
            if names_like(folder, f"__*{METADATA}"):
                continue  # each rank's own, which is another kind of save
            if files and not (is_file(metadata) and size_of(metadata)):
                lacks = f" and no {METADATA}, which is written last"
                if exists(metadata):
                    state = "empty" if is_file(metadata) else "no file"
                    lacks = f", and {METADATA}, which is written last, is {state}"
                text = f"{len(files)} data files{lacks}"
                return Complaint(FormatError(text, kind="metadata-missing"), (str(folder),))
        return None

    def lay_out(
        self,
        held: Iterable[HeldTarget],
        entries: Mapping[str, bytes],
        ranks: int,
        paths: Mapping[str, tuple[str, ...]],
    ) -> Arrangement:
        return lay_out(held, entries, ranks, paths=paths)

    def file_of(self, rank: int) -> str:
        return file_of(rank)

    def arrange(self, targets: Sequence[Target], options: WriteOptions) -> Arrangement:
        made = arrange(targets, options)
        return replace(made, closing={**made.closing, **as_file(options.metadata)})


def _open(path: PurePath, complain: Complain) -> tuple[Metadata, dict[str, int], tuple[str, ...]]:
    """The metadata of a folder, or of the parts that make it up, the sizes of its data files, and what is to be said."""
    if is_file(path / METADATA):
        with Folder(path) as folder:
            return *open_metadata(folder, complain), ()
    whole, sizes, parts = Metadata({}, {}), dict[str, int](), dict[str, Metadata]()
    for part in model_subfolders(path, complain):
        with Folder(path / part) as folder:
            metadata, held = open_metadata(folder, complain)
        moved, parts[part] = below(part, metadata), metadata
        both = (
            whole.tensors.keys() & moved.tensors.keys()
            | whole.objects.keys() & moved.objects.keys()
        )
        if twice := sorted(both):
            raise FormatError(
                f"`{twice[0]}` is in two parts of {path}, {part} among them",
                hint=f"give the folder of one part, for example {path / part}",
                tensors=(twice[0],),
            )
        whole = Metadata(
            whole.tensors | moved.tensors,
            whole.objects | moved.objects,
            {**whole.paths, **moved.paths},
            whole.extra | moved.extra,
        )
        sizes |= {f"{part}/{file}": size for file, size in held.items()}
    return whole, sizes, tuple(saved_apart(parts))


def _no_tensors(path: PurePath, metadata: Metadata) -> FormatError:
    """What is wrong where all that was saved are objects: one may be the state dict of a whole model."""
    objects = few([f"`{name}`" for name in metadata.objects], 4)
    return FormatError(
        f"{path} holds no tensor" + (f", only objects: {objects}" if objects else ""),
        hint="torch's planners with flatten_state_dict=False write a dict inside of a dict as one"
        " object, that of one rank: save again without that option",
        kind="tensor-missing",
    )


def _as_saved(metadata: Metadata, sections: Sections) -> SavedStateDict:
    """What is carried as it is, without the objects of sections that are left out."""
    objects = {n: o for n, o in metadata.objects.items() if sections.entry(n) is not None}
    return SavedStateDict(objects, metadata.paths)


def spell(name: str) -> str:
    """A tensor's name as torch flattens state dicts: optimizer state by parameter, then kind.

    >>> spell("optimizer.exp_avg.model.norm.weight")
    'optimizer.state.model.norm.weight.exp_avg'
    """
    state = StateName.of(name)
    return state.as_torch if state else name


def _remarks(state: StateParameters) -> Iterator[str]:
    if numbers := sum(map(str.isdecimal, state.names)):
        yield f"the optimizer's state is numbered: {numbers} numbers are parameters by name here"
    if state.by_order:
        yield (
            "the numbers have no names: they are read in the order of the model's parameters, as"
            " in an optimizer made with model.parameters()"
        )
    if state.unclear is not None:
        yield state.unclear.brief
