"""Hugging Face checkpoints: safetensors files, one or many with an index, and small files.

Optimizer state and other training state that came along lies in the side folder
`optimizer/`, where Transformers does not look.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from intarsia.errors import FormatError, IntarsiaError
from intarsia.family import Param, Table
from intarsia.format.base import Arrangement, Located, Slot, WriteOptions
from intarsia.format.complaint import Complain, Complaint, going_on, refuse
from intarsia.format.names import name_tensors
from intarsia.format.safetensors_header import make_header, read_header
from intarsia.format.sides import config_of, side_files
from intarsia.format.strict_json import parse_json
from intarsia.layout import Layout
from intarsia.mesh import Box, Mesh
from intarsia.planning.manifest import Chunk, Entry, Manifest, Stored, Target
from intarsia.store.local import Folder, check_name

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
OPTIMIZER = "optimizer"
ENTRIES = "entries.json"
_NUMBERED = re.compile(r"^(?P<stem>.+)-(?P<k>\d{5})-of-(?P<n>\d{5})\.safetensors$")


class Hf:
    """The format `hf`."""

    name = "hf"
    dialects: tuple[str, ...] = ("hf", "same", "hf-module", "hf-fused")
    sharded = False
    carries_anything = True

    def detect(self, path: Path) -> bool:
        if path.is_file():
            return path.suffix == ".safetensors" or _starts_like_safetensors(path)
        return path.is_dir() and any(path.glob("*.safetensors*"))

    def read(
        self, path: Path, config: Mapping[str, Any] | None, complain: Complain = refuse
    ) -> Manifest:
        root = path if path.is_dir() else path.parent
        folder = Folder(root)
        sides = side_files(root) if path.is_dir() else ()
        with folder:
            files = _files_of(folder, complain) if path.is_dir() else {path.name: None}
            if path.is_dir() and (root / OPTIMIZER).is_dir():
                files |= _extra_files(root / OPTIMIZER, complain)
            found = _read_files(folder, files, complain)
            sizes = {file: folder.size(file) for file in files}
            entries: dict[str, Entry] = {}
            if path.is_dir():
                with going_on(complain, f"{OPTIMIZER}/{ENTRIES}"):
                    entries = _entries_of(folder)
            with going_on(complain, "config.json"):
                config = config or config_of(root)
        named = name_tensors(found, config, str(path), complain)
        return Manifest(
            format=self.name,
            path=str(path),
            stored=named.stored,
            logical=named.logical,
            files=sizes,
            family=named.family,
            config=config,
            entries=entries,
            sides=sides,
            absent=named.absent,
            problems=named.problems,
            notes=(*named.notes, *(_beside(root, files) if path.is_dir() else ())),
        )

    def locate(self, folder: Folder, stored: Stored, chunk: Chunk) -> Located:
        return Located(chunk.start_bytes)

    def rows(self, table: Table, dialect: str, mesh: Mesh, spec: str) -> Sequence[Param]:
        return tuple(table.dialects[dialect].values())

    def spell(self, name: str) -> str:
        return name

    def arrange(self, targets: Sequence[Target], options: WriteOptions) -> Arrangement:
        state = [t for t in targets if is_training_state(t.name)]
        model = [t for t in targets if not is_training_state(t.name)]
        files: dict[str, int] = {}
        slots: dict[str, tuple[Slot, ...]] = {}
        fixed: list[tuple[str, int, bytes]] = []
        closing: dict[str, bytes] = {}
        for prefix, part in (("", model), (f"{OPTIMIZER}/", state)):
            if part or not prefix:
                _arrange_files(part, prefix, options, files, slots, fixed, closing)
        if options.entries:
            text = {k: base64.b64encode(v).decode() for k, v in sorted(options.entries.items())}
            closing[f"{OPTIMIZER}/{ENTRIES}"] = json.dumps(text, indent=1).encode()
        return Arrangement(files, slots, fixed, closing)


def is_training_state(name: str) -> bool:
    """Whether a tensor belongs in the side folder."""
    return name.startswith("optimizer.")


def _starts_like_safetensors(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(9)
    return len(head) == 9 and head[8:9] == b"{"


def _files_of(folder: Folder, complain: Complain) -> dict[str, list[str] | None]:
    """The checkpoint's files; with an index, the tensors that each must hold."""
    root = folder.root
    if (root / INDEX).exists():
        with going_on(complain, INDEX):
            held = dict(_indexed(folder, complain))
            if (root / SINGLE).exists() and SINGLE not in held:
                error = FormatError(
                    f"{root} holds both {SINGLE} and an index of {len(held)} other files",
                    hint="they may be different weights: remove the one that is stale",
                    kind="index-wrong",
                )
                complain(Complaint(error, (SINGLE,)))
            return dict(held)
        return dict.fromkeys(sorted(p.name for p in root.glob("*.safetensors")))
    if (root / SINGLE).exists():
        return {SINGLE: None}
    names = sorted(p.name for p in root.glob("*.safetensors"))
    numbered = [m for m in map(_NUMBERED.match, names) if m]
    sets = sorted({(m["stem"], m["n"]) for m in numbered})
    if numbered and len(sets) == 1:
        count, stem = int(numbered[0]["n"]), numbered[0]["stem"]
        wanted = [f"{stem}-{k:05d}-of-{count:05d}.safetensors" for k in range(1, count + 1)]
        missing = [name for name in wanted if name not in names]
        if missing:
            error = FormatError(
                f"{root} has {count - len(missing)} of {count} files; absent: {', '.join(missing[:4])}",
                hint="restore the missing files, or use a complete checkpoint",
                kind="file-missing",
            )
            complain(Complaint(error, tuple(missing)))
        return dict.fromkeys(name for name in wanted if name in names)
    if len(names) == 1:
        return {names[0]: None}
    several = f" ({' and '.join(f'of-{n}' for _, n in sets[:4])})" if len(sets) > 1 else ""
    error = FormatError(
        f"{root} holds {len(names)} safetensors files{several} and no index: {', '.join(names[:4])}",
        hint=f"name the one file, or add {INDEX}",
        kind="index-wrong",
    )
    complain(Complaint(error, tuple(names)))
    return dict.fromkeys(names)


def _beside(root: Path, files: Mapping[str, Any]) -> Iterator[str]:
    """Notes of files with weights that are no part of the checkpoint."""
    others = sorted(p.name for p in root.glob("*.safetensors") if p.name not in files)
    if others and (root / INDEX).exists():
        verb = "lies" if len(others) == 1 else "lie"
        read = "is" if len(others) == 1 else "are"
        shown = ", ".join(others[:4]) + (f", … ({len(others)} in all)" if len(others) > 4 else "")
        yield f"{shown} {verb} beside the files of the index, and {read} not read"


def _extra_files(root: Path, complain: Complain) -> dict[str, list[str] | None]:
    """The files of the side folder, which may hold entries alone."""
    if not any(root.glob("*.safetensors*")):
        return {}

    def here(complaint: Complaint) -> None:
        complain(replace(complaint, files=tuple(f"{OPTIMIZER}/{f}" for f in complaint.files)))

    with Folder(root) as folder:
        return {f"{OPTIMIZER}/{file}": names for file, names in _files_of(folder, here).items()}


def _indexed(folder: Folder, complain: Complain) -> Iterable[tuple[str, list[str]]]:
    where = folder.root / INDEX
    index = parse_json(folder.read_all(INDEX), str(where), hint="restore the index")
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict):
        raise FormatError(
            f"{where} has no weight_map", hint="restore the index", kind="index-wrong"
        )
    held: dict[str, list[str]] = {}
    for name, file in weight_map.items():
        held.setdefault(check_name(file, str(where)), []).append(name)
    absent = [file for file in held if not (folder.root / file).is_file()]
    if absent:
        lost = sum(len(held[file]) for file in absent)
        error = FormatError(
            f"{where} names {len(held)} files, {len(absent)} are absent with {lost} tensors:"
            f" {', '.join(sorted(absent)[:4])}",
            hint="restore the missing files, or use a complete checkpoint",
            kind="file-missing",
        )
        names = tuple(name for file in sorted(absent) for name in held[file])
        complain(Complaint(error, tuple(sorted(absent)), names))
    return sorted((file, names) for file, names in held.items() if file not in absent)


def _read_files(
    folder: Folder, files: Mapping[str, list[str] | None], complain: Complain
) -> list[Stored]:
    found: dict[str, Stored] = {}
    for file, expected in files.items():
        try:
            _read_file(folder, file, expected, found, complain)
        except IntarsiaError as error:
            complain(Complaint(error, (file,), tuple(expected or ())))
    return list(found.values())


def _read_file(
    folder: Folder,
    file: str,
    expected: list[str] | None,
    found: dict[str, Stored],
    complain: Complain,
) -> None:
    """Add a file's tensors to those that were found."""
    rows, metadata = read_header(folder, file, complain)
    if "DCP_SHARDING_INFO" in metadata:
        raise FormatError(
            f"{folder.root / file} is a shard that torch's distributed writer left unconsolidated",
            hint="load it with torch's HuggingFaceStorageReader and save it with intarsia.save:"
            " torch's consolidation writes zeros for numbers and for absent shards",
        )
    names = {row.name for row in rows}
    if expected is not None and names != set(expected):
        lost, extra = sorted(set(expected) - names), sorted(names - set(expected))
        error = FormatError(
            f"{folder.root / file} and the index disagree: the index wants {len(expected)}"
            f" tensors, the file has {len(names)}; absent {lost[:3]}, not indexed {extra[:3]}",
            hint="restore the file or the index that belongs to it",
            kind="index-wrong",
        )
        complain(Complaint(error, (file,)))
    for row in rows:
        if row.name in found:
            error = FormatError(
                f"{row.name!r} is in {found[row.name].chunks[0].file} and in {file}",
                kind="index-wrong",
            )
            complain(Complaint(error, (file,)))
            continue
        chunk = Chunk(Box.whole(row.shape), file, row.start_bytes, row.length_bytes)
        layout = Layout.of(row.name, row.shape)
        found[row.name] = Stored(row.name, row.dtype, layout, (chunk,), key=row.name)


def _entries_of(folder: Folder) -> dict[str, Entry]:
    file = f"{OPTIMIZER}/{ENTRIES}"
    if not (folder.root / file).exists():
        return {}
    found = read_entries(folder)
    return {name: Entry(name, file, 0, len(data)) for name, data in found.items()}


def read_entries(folder: Folder) -> dict[str, bytes]:
    """The entries of the side folder, by name."""
    where = str(folder.root / OPTIMIZER / ENTRIES)
    raw = parse_json(folder.read_all(f"{OPTIMIZER}/{ENTRIES}"), where)
    try:
        return {name: base64.b64decode(text, validate=True) for name, text in raw.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise FormatError(f"{where} is not an object of base64 texts ({error})") from error


def _arrange_files(
    targets: Sequence[Target],
    prefix: str,
    options: WriteOptions,
    files: dict[str, int],
    slots: dict[str, tuple[Slot, ...]],
    fixed: list[tuple[str, int, bytes]],
    closing: dict[str, bytes],
) -> None:
    shards = _shards(targets, options.max_shard_bytes)
    weight_map: dict[str, str] = {}
    for k, shard in enumerate(shards, 1):
        name = SINGLE if len(shards) == 1 else f"model-{k:05d}-of-{len(shards):05d}.safetensors"
        header = make_header([(t.name, t.dtype, t.shape) for t in shard], {"format": "pt"})
        fixed.append((prefix + name, 0, header))
        at = len(header)
        for t in shard:
            slots[t.name] = (Slot(Box.whole(t.shape), prefix + name, at),)
            weight_map[t.name] = name
            at += t.nbytes
        files[prefix + name] = at
    if len(shards) > 1:
        total = sum(t.nbytes for t in targets)
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        closing[prefix + INDEX] = (json.dumps(index, indent=2) + "\n").encode()


def _shards(targets: Sequence[Target], max_bytes: int) -> list[list[Target]]:
    """Targets in files of at most `max_bytes`, wide elements first so that each is aligned."""
    shards: list[list[Target]] = [[]]
    used = 0
    for target in targets:
        if shards[-1] and used + target.nbytes > max_bytes:
            shards.append([])
            used = 0
        shards[-1].append(target)
        used += target.nbytes
    return [sorted(shard, key=lambda t: -t.dtype.itemsize) for shard in shards]
