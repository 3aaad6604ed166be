"""Hugging Face checkpoints: safetensors files, one or many with an index, and small files.

Optimizer state and other training state that came along lies in the side folder
`optimizer/`, where Transformers does not look.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import Any

from intarsia.errors import FormatError, SectionError, UsageError, few
from intarsia.format.base import AbsentFiles, Arrangement, Format, Slot, WriteOptions
from intarsia.format.complaint import Complain, Complaint, going_on, refuse
from intarsia.format.folder.adapters import CONFIG as ADAPTER_CONFIG
from intarsia.format.folder.stored_config import choose_config
from intarsia.format.hf.absent_files import absent_of_sets
from intarsia.format.hf.adapter import check_adapter, stem_for
from intarsia.format.hf.files import (
    OPTIMIZER,
    WeightFiles,
    extra_files,
    has_weights,
    read_files,
    weight_files,
)
from intarsia.format.hf.safetensors_header import make_header
from intarsia.format.hf.safetensors_metadata import ONE_MODEL, HeaderMetadata
from intarsia.format.hf.weight_sets import ADAPTER, INDEX, MODEL, index_of, set_size, stem_of_file
from intarsia.format.naming.logical_names import name_tensors
from intarsia.format.naming.quantised_names import MODELOPT, modelopt_of
from intarsia.format.naming.section import TOP
from intarsia.format.naming.sections import divide
from intarsia.format.strict_json import parse_json
from intarsia.mesh import Box
from intarsia.planning.inventory import Fate, InventoryItem, Role
from intarsia.planning.manifest import Entry, Manifest, Target
from intarsia.planning.whole_tensor import WholeTensor
from intarsia.state.names import SETTING, is_state, kind_of
from intarsia.store.address import named
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import exists, is_file, is_folder, names_like

ENTRIES = "entries.json"


class Hf(Format):
    """The format `hf`."""

    name = "hf"
    sharded = False
    header_files = (INDEX, f"{OPTIMIZER}/{INDEX}", f"{OPTIMIZER}/{ENTRIES}")
    trainer_files = True
    header_metadata = True
    found_by_name = True
    entries_in_place = False

    def detect(self, path: PurePath) -> bool:
        if is_file(path):
            return path.suffix == ".safetensors" or _starts_like_safetensors(path)
        return has_weights(path)

    def read(
        self,
        path: PurePath,
        config: Mapping[str, Any] | None,
        complain: Complain = refuse,
        section: Sequence[str] = (),
    ) -> Manifest:
        a_folder = is_folder(path)
        root = path if a_folder else path.parent
        with Folder(root) as folder:
            weights = weight_files(folder, complain) if a_folder else WeightFiles({path.name: None})
            files = dict(weights.held)
            beside: dict[str, list[str] | None] = {}
            if a_folder and is_folder(root / OPTIMIZER):
                beside = extra_files(root / OPTIMIZER, complain)
                files |= beside
            headers = HeaderMetadata()
            found = read_files(folder, files, complain, headers, weights.total_bytes)
            if beside:
                _check_side_folder(root, (x for x in found.values() if x.file in beside), complain)
            sizes = {file: folder.size(file) for file in files}
            indexes = []
            if index := weights.index:
                size = folder.size(index)
                indexes = [InventoryItem("file", index, Role.MODEL, Fate.READ, nbytes=size)]
            entries: dict[str, Entry] = {}
            if a_folder:
                with going_on(complain, f"{OPTIMIZER}/{ENTRIES}"):
                    entries = _entries_of(folder)
            modelopt = None
            lacks: tuple[str, ...] = ()
            if any(stem_of_file(file) == ADAPTER for file in files):
                config = None  # a model's configuration says nothing of an adapter
                if a_folder:
                    with going_on(complain, ADAPTER_CONFIG):
                        lacks = check_adapter(root, found.values(), complain)
            else:
                with going_on(complain, "config.json"):
                    config = choose_config(config, root)
                with going_on(complain, MODELOPT):
                    modelopt = modelopt_of(root)
        asked = (TOP,) if headers.one_model and config is None and not section else section
        named = name_tensors(found, config, str(path), complain, modelopt, section=asked)
        return Manifest(
            format=self.name,
            path=str(path),
            stored=named.stored,
            logical=named.logical,
            files=sizes,
            family=named.family,
            config=config,
            entries=entries,
            inventory=(*indexes, *named.inventory),
            absent=named.absent,
            problems=named.problems,
            metadata=headers.agreed,
            notes=(*named.notes, *headers.notes(), *lacks, *weights.notes(found)),
            section=tuple(section),
            state_unclear=named.unclear,
            quantised=named.quantised,
        )

    def entries(
        self, src: Manifest, folder: Folder, limit_bytes: int
    ) -> Iterator[tuple[str, bytes]]:
        held = read_side_entries(folder) if src.entries else {}
        yield from ((name, held[name]) for name in src.entries)

    def stray(self, path: PurePath) -> str:
        files = (file.name for file in names_like(path, "*.safetensors"))
        return next((file for file in files if stem_of_file(file) == MODEL), "")

    def is_frame(self, name: str) -> bool:
        return False  # which of several indexes was read, the inventory says

    def describes_itself(self, file: str) -> bool:
        return file.endswith(".safetensors")

    def absent_files(self, files: Collection[str]) -> Iterator[AbsentFiles]:
        return absent_of_sets(files)

    def is_alone(self, path: PurePath) -> bool:
        home = path.parent
        return not exists(home / INDEX) and names_like(home, "*.safetensors") == [home / path.name]

    def refuse_part(self, src: Manifest) -> None:
        path = named(src.path)
        count = set_size(path.name)
        if count and int(count) > 1:
            raise UsageError(
                f"{path} is one of {int(count)} files of a checkpoint",
                hint=f"give the folder of all of them: {path.parent}",
            )

    def arrange(self, targets: Sequence[Target], options: WriteOptions) -> Arrangement:
        state = [t for t in targets if is_state(t.name)]
        model = [t for t in targets if not is_state(t.name)]
        files: dict[str, int] = {}
        slots: dict[str, tuple[Slot, ...]] = {}
        fixed: list[tuple[str, int, bytes]] = []
        closing: dict[str, bytes] = {}
        metadata = {**options.metadata}
        if options.config is None and not _reads_as_one(model):
            metadata[ONE_MODEL] = "true"
        for prefix, stem, part, said in (
            ("", stem_for(options.source), model, metadata),
            (f"{OPTIMIZER}/", MODEL, state, {}),
        ):
            # PEFT reads one file and knows no index.
            most_bytes = sum(t.nbytes for t in part) if stem == ADAPTER else options.max_shard_bytes
            shards = _shards(stem, part, most_bytes) if part or not prefix else {}
            for name, shard in shards.items():
                rows = [(t.name, t.dtype, t.shape) for t in shard]
                header = make_header(rows, {"format": "pt", **said})
                fixed.append((prefix + name, 0, header))
                at = len(header)
                for target in shard:
                    slots[target.name] = (Slot(Box.whole(target.shape), prefix + name, at),)
                    at += target.nbytes
                files[prefix + name] = at
            if len(shards) > 1:
                closing[prefix + index_of(stem)] = _index(shards)
        if options.entries:
            text = {k: base64.b64encode(v).decode() for k, v in sorted(options.entries.items())}
            closing[f"{OPTIMIZER}/{ENTRIES}"] = json.dumps(text, indent=1).encode()
        notes: tuple[str, ...] = ()
        if odd := [t.name for t in state if kind_of(t.name) == SETTING]:
            names = f"the names of {few(odd, 4)} begin as those of an optimizer's state"
            notes = (f"{names}: they are in {OPTIMIZER}/, which Transformers does not read",)
        return Arrangement(files, slots, fixed, closing, notes)


def _check_side_folder(root: PurePath, found: Iterable[WholeTensor], complain: Complain) -> None:
    """Complain of tensors in the side folder that are no state: as weights they would be written beside the model's."""
    for file, odd in groupby((x for x in found if not is_state(x.name)), lambda x: x.file):
        names = tuple(x.name for x in odd)
        error = FormatError(
            f"{few([f'`{name}`' for name in names], 3)} in {root / file} has no name of optimizer state",
            hint=f"names there begin with `optimizer.`: if another program wrote {root / OPTIMIZER},"
            " move it away",
            tensors=names,
        )
        complain(Complaint(error, (file,)))


def _starts_like_safetensors(path: PurePath) -> bool:
    with Folder(path.parent) as folder:
        return folder.size(path.name) >= 9 and folder.read(path.name, 8, 1) == b"{"


def _entries_of(folder: Folder) -> dict[str, Entry]:
    file = f"{OPTIMIZER}/{ENTRIES}"
    if not exists(folder.root / file):
        return {}
    found = read_side_entries(folder)
    return {name: Entry(name, file, 0, len(data)) for name, data in found.items()}


def read_side_entries(folder: Folder) -> dict[str, bytes]:
    """The entries of the side folder, by name."""
    where = str(folder.root / OPTIMIZER / ENTRIES)
    raw = parse_json(folder.read_all(f"{OPTIMIZER}/{ENTRIES}"), where)
    try:
        return {name: base64.b64decode(text, validate=True) for name, text in raw.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise FormatError(f"{where} is not an object of base64 texts ({error})") from error


def _reads_as_one(model: Sequence[Target]) -> bool:
    """Whether tensors without a configuration are read back as they are: no first word looks like another model's."""
    try:
        names = divide({t.name: t for t in model}, None, "").names
    except SectionError:
        return False
    return len(names) == len(model) and all(key == name for key, name in names.items())


def _shards(stem: str, targets: Sequence[Target], max_bytes: int) -> dict[str, list[Target]]:
    """Targets in files of at most `max_bytes`, wide elements first so that each is aligned."""
    shards: list[list[Target]] = [[]]
    used = 0
    for target in targets:
        if shards[-1] and used + target.nbytes > max_bytes:
            shards.append([])
            used = 0
        shards[-1].append(target)
        used += target.nbytes
    count = len(shards)
    numbers = [f"-{k:05d}-of-{count:05d}" for k in range(1, count + 1)] if count > 1 else [""]
    return {
        f"{stem}{number}.safetensors": sorted(shard, key=lambda t: -t.dtype.itemsize)
        for number, shard in zip(numbers, shards, strict=True)
    }


def _index(shards: Mapping[str, Sequence[Target]]) -> bytes:
    """The index of several files: which of them has which tensors."""
    held = {t.name: name for name, shard in shards.items() for t in shard}
    total = sum(t.nbytes for shard in shards.values() for t in shard)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(held.items()))}
    return (json.dumps(index, indent=2) + "\n").encode()
