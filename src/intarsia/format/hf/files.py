"""Which files a Hugging Face folder consists of, and the tensors that their headers name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath

from intarsia.errors import FormatError, IntarsiaError, few
from intarsia.format.complaint import Complain, Complaint, going_on, refuse
from intarsia.format.hf.dcp_shards import SHARDING, begins_every_tensor, unconsolidated
from intarsia.format.hf.safetensors_header import read_header
from intarsia.format.hf.safetensors_metadata import HeaderMetadata
from intarsia.format.hf.weight_sets import (
    choose,
    files_by_stem,
    index_of,
    numbered_set,
    set_size,
    stem_of_index,
)
from intarsia.format.strict_json import parse_json
from intarsia.frozen import frozen
from intarsia.planning.whole_tensor import WholeTensor
from intarsia.store.reading.file_names import check_inside
from intarsia.store.reading.folder import Folder
from intarsia.store.reading.lookup import names_like

OPTIMIZER = "optimizer"
_LFS = b"version https://git-lfs"


@frozen
class WeightFiles:
    """The files of one set; with an index, its name, the tensors that each file must hold, and their bytes; else the name of one that loaders miss."""

    held: Mapping[str, list[str] | None]
    index: str = ""
    total_bytes: int | None = None
    index_absent: str = ""

    def notes(self, found: Mapping[str, WholeTensor]) -> Iterator[str]:
        """What keeps a loader from these files, or makes the index another's, though every tensor is here."""
        if self.index_absent:
            yield (
                f"there is no {self.index_absent}, without which Transformers does not find numbered files;"
                " `intarsia convert --to hf` writes what it finds"
            )
        if self.total_bytes is None:
            return
        held = sum(x.length_bytes for x in found.values() if x.file in self.held)
        if held != self.total_bytes and all(
            found.keys() >= {*(x or ())} for x in self.held.values()
        ):
            yield (
                f"{self.index} gives {self.total_bytes:,} bytes as its total_size, and its tensors have"
                f" {held:,}"
            )


def has_weights(path: PurePath) -> bool:
    """Whether a folder holds safetensors files, or an index of some; one that is half downloaded is none."""
    return any(p.suffix == ".safetensors" or stem_of_index(p.name) for p in names_like(path))


def weight_files(folder: Folder, complain: Complain) -> WeightFiles:
    """The files of the one set that is read."""
    root = folder.root
    names = [p.name for p in names_like(root, "*.safetensors")]
    sets = dict(files_by_stem(names))
    indexes = {stem: p.name for p in names_like(root, "*.json") if (stem := stem_of_index(p.name))}
    stem = choose([*sets, *indexes])
    if stem is None and len(indexes) == 1:
        (only, file), *_ = indexes.items()
        held = _indexed(folder, file, complain).held
        stem = only if held.keys() >= set(names) else None
    if stem is None:
        _refuse_unconsolidated(folder, names)
        complain(Complaint(_several(root, names), tuple(names)))
        return WeightFiles(dict.fromkeys(names))
    if stem in indexes:
        index = indexes[stem]
        with going_on(complain, index):
            return _from_index(folder, index, f"{stem}.safetensors", complain)
        return WeightFiles(dict.fromkeys(sets.get(stem, names)), index)
    files = sets[stem]
    if (single := f"{stem}.safetensors") in files:
        return WeightFiles({single: None})
    numbered = numbered_set(files)
    if numbered is None:
        complain(Complaint(_several(root, files), tuple(files)))
        return WeightFiles(dict.fromkeys(files))
    there, count, absent = numbered
    if absent:
        lost = count - len(there)
        more = f" and {lost - 4} more" if lost > 4 else ""
        error = FormatError(
            f"{root} has {len(there)} of {count} files; absent: {', '.join(absent[:4])}{more}",
            hint="restore the missing files, or use a complete checkpoint",
            kind="file-missing",
        )
        complain(Complaint(error, tuple(absent if len(absent) == lost else absent[:4])))
    return WeightFiles(dict.fromkeys(there), index_absent=index_of(stem))


def _several(root: PurePath, names: list[str]) -> FormatError:
    """Files, where nothing says which of them are the model."""
    counts = sorted({n for name in names if (n := set_size(name))})
    several = f" ({' and '.join(f'of-{n}' for n in counts[:4])})" if len(counts) > 1 else ""
    return FormatError(
        f"{root} holds {len(names)} safetensors files{several} and no index: {few(names, 4)}",
        hint=f"give the path of one file, or add {index_of('model')}",
        kind="index-wrong",
    )


def _from_index(folder: Folder, index: str, single: str, complain: Complain) -> WeightFiles:
    found = _indexed(folder, index, complain)
    if folder.has(single) and single not in found.held:
        error = FormatError(
            f"{folder.root} holds both {single} and an index of {len(found.held)} other files",
            hint="they may be different weights: remove the one that is stale",
            kind="index-wrong",
        )
        complain(Complaint(error, (single,)))
    return found


def extra_files(root: PurePath, complain: Complain) -> dict[str, list[str] | None]:
    """The files of the side folder, which may hold entries alone."""
    if not has_weights(root):
        return {}

    def here(complaint: Complaint) -> None:
        complain(replace(complaint, files=tuple(f"{OPTIMIZER}/{f}" for f in complaint.files)))

    with Folder(root) as folder:
        held = weight_files(folder, here).held
        return {f"{OPTIMIZER}/{file}": names for file, names in held.items()}


def _indexed(folder: Folder, file_name: str, complain: Complain) -> WeightFiles:
    where = folder.root / file_name
    index = parse_json(folder.read_all(file_name), str(where), hint="restore the index")
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict):
        raise FormatError(
            f"{where} has no weight_map", hint="restore the index", kind="index-wrong"
        )
    held: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        if type(file) is not str or file not in held:
            held[check_inside(file, str(where))] = []
        held[file].append(name)
    absent = [file for file in held if not folder.has(file)]
    if absent:
        lost = sum(len(held[file]) for file in absent)
        are = "is" if len(absent) == 1 else "are"
        error = FormatError(
            f"{where} names {len(held)} files, {len(absent)} {are} absent with {lost} tensors:"
            f" {few(sorted(absent), 4)}",
            hint="restore the missing files, or use a complete checkpoint",
            kind="file-missing",
        )
        names = tuple(name for file in sorted(absent) for name in held[file])
        complain(Complaint(error, tuple(sorted(absent)), names))
    there = sorted((file, names) for file, names in held.items() if file not in absent)
    said = index.get("metadata")
    total = said.get("total_size") if isinstance(said, dict) and not absent else None
    return WeightFiles(dict(there), file_name, total if type(total) is int else None)


def _refuse_unconsolidated(folder: Folder, names: Iterable[str]) -> None:
    """Raise where files are shards of tensors, each rank's, as torch's writer leaves them."""
    for file in names:
        if SHARDING in read_header(folder, file, refuse)[1]:
            raise unconsolidated(folder, file)


def read_files(
    folder: Folder,
    files: Mapping[str, list[str] | None],
    complain: Complain,
    headers: HeaderMetadata | None = None,
    total_bytes: int | None = None,
) -> dict[str, WholeTensor]:
    """The tensors of files by name; `total_bytes` is how many an index gives them."""
    found: dict[str, WholeTensor] = {}
    doubtful: list[str] = []
    read = 0
    for file, expected in files.items():
        try:
            metadata = _read_file(folder, file, expected, found, complain)
            read += 1
            if SHARDING in metadata:
                doubtful.append(file)
            if headers is not None:
                headers.add(metadata)
        except IntarsiaError as error:
            complain(Complaint(error, (file,), tuple(expected or ())))
    if not found and read == len(files):
        empty = FormatError(
            f"{folder.root} holds no tensor: {few(sorted(files))}",
            hint="save again where the weights are: some trainers leave such files on ranks that have none",
            kind="tensor-missing",
        )
        complain(Complaint(empty, tuple(files)))
    # An index counts what all ranks wrote: as much as its files hold, if each rank did not write its own.
    if doubtful and total_bytes != sum(x.nbytes for x in found.values()):
        for file in doubtful:
            lost = tuple(name for name, x in found.items() if x.file == file)
            complain(Complaint(unconsolidated(folder, file), (file,), lost))
            found = {name: x for name, x in found.items() if name not in lost}
    return found


def _read_file(
    folder: Folder,
    file: str,
    expected: list[str] | None,
    found: dict[str, WholeTensor],
    complain: Complain,
) -> Mapping[str, str]:
    """Add a file's tensors to those that were found; what its header says beside them."""
    if folder.read(file, 0, min(folder.size(file), len(_LFS))) == _LFS:
        raise FormatError(
            f"{folder.root / file} is a Git LFS pointer, not the file itself",
            hint=f"run `git lfs pull` in {folder.root}",
        )
    rows, metadata = read_header(folder, file, complain)
    if SHARDING in metadata and not (
        expected and begins_every_tensor(metadata, str(folder.root / file))
    ):
        raise unconsolidated(folder, file)
    here = {row.name: row for row in rows}
    if expected is not None and not (
        len(expected) == len(here) and all(map(here.__contains__, expected))
    ):
        lost, extra = sorted(set(expected) - here.keys()), sorted(here.keys() - set(expected))
        alone = {"the index alone names": lost, "the file alone holds": extra}
        said = ", ".join(f"{who} {few(names)}" for who, names in alone.items() if names)
        error = FormatError(
            f"{folder.root / file} and the index disagree: {said}",
            hint="restore the file or the index that belongs to it",
            kind="index-wrong",
        )
        complain(Complaint(error, (file,)))
    twice = [] if found.keys().isdisjoint(here) else [name for name in here if name in found]
    for name in twice:
        error = FormatError(
            f"{name!r} is in {found[name].file} and in {file}",
            hint="remove the file that is not of this model, or the tensor from one of the two",
            kind="index-wrong",
        )
        complain(Complaint(error, (file,)))
        del here[name]
    found |= here
    return metadata
