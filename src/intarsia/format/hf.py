"""Hugging Face checkpoints: safetensors files, one or many with an index, and small files.

Optimizer state and other training state that came along lies in the side folder
`optimizer/`, where Transformers does not look.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from intarsia.errors import FormatError
from intarsia.family import Param, Table
from intarsia.format.base import Arrangement, Located, Slot, WriteOptions
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

    def read(self, path: Path, config: Mapping[str, Any] | None) -> Manifest:
        root = path if path.is_dir() else path.parent
        folder = Folder(root)
        sides = side_files(root) if path.is_dir() else ()
        with folder:
            files = _files_of(folder) if path.is_dir() else {path.name: None}
            found = _read_files(folder, files)
            entries: dict[str, Entry] = {}
            sizes = {file: folder.size(file) for file in files}
            if path.is_dir() and (root / OPTIMIZER).is_dir():
                extra = _extra_files(root / OPTIMIZER)
                found += _read_files(folder, extra)
                sizes |= {file: folder.size(file) for file in extra}
                entries = _entries_of(folder)
            config = config or config_of(root)
        named = name_tensors(found, config, str(path))
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
            notes=named.notes,
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


def _files_of(folder: Folder) -> dict[str, list[str] | None]:
    """The checkpoint's files; with an index, the tensors that each must hold."""
    root = folder.root
    if (root / INDEX).exists():
        held = dict(_indexed(folder))
        if (root / SINGLE).exists() and SINGLE not in held:
            raise FormatError(
                f"{root} holds both {SINGLE} and an index of {len(held)} other files",
                hint="they may be different weights: remove the one that is stale",
                kind="index-wrong",
            )
        return dict(held)
    if (root / SINGLE).exists():
        return {SINGLE: None}
    names = sorted(p.name for p in root.glob("*.safetensors"))
    numbered = [m for m in map(_NUMBERED.match, names) if m]
    if numbered:
        count, stem = int(numbered[0]["n"]), numbered[0]["stem"]
        wanted = [f"{stem}-{k:05d}-of-{count:05d}.safetensors" for k in range(1, count + 1)]
        missing = [name for name in wanted if name not in names]
        if missing:
            raise FormatError(
                f"{root} has {count - len(missing)} of {count} files; absent: {', '.join(missing[:4])}",
                hint="restore the missing files, or use a complete checkpoint",
                kind="file-missing",
            )
        return dict.fromkeys(wanted)
    if len(names) == 1:
        return {names[0]: None}
    raise FormatError(
        f"{root} holds {len(names)} safetensors files and no index: {', '.join(names[:4])}",
        hint=f"name the one file, or add {INDEX}",
        kind="index-wrong",
    )


def _extra_files(root: Path) -> dict[str, list[str] | None]:
    """The files of the side folder, which may hold entries alone."""
    if not any(root.glob("*.safetensors*")):
        return {}
    with Folder(root) as folder:
        return {f"{OPTIMIZER}/{file}": names for file, names in _files_of(folder).items()}


def _indexed(folder: Folder) -> Iterable[tuple[str, list[str]]]:
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
        raise FormatError(
            f"{where} names {len(held)} files, {len(absent)} are absent with {lost} tensors:"
            f" {', '.join(sorted(absent)[:4])}",
            hint="restore the missing files, or use a complete checkpoint",
            kind="file-missing",
        )
    return sorted(held.items())


def _read_files(folder: Folder, files: Mapping[str, list[str] | None]) -> list[Stored]:
    found: dict[str, Stored] = {}
    for file, expected in files.items():
        rows, metadata = read_header(folder, file)
        if "DCP_SHARDING_INFO" in metadata:
            raise FormatError(
                f"{folder.root / file} is a shard that torch's distributed writer left unconsolidated",
                hint="load it with torch's HuggingFaceStorageReader and save it with intarsia.save:"
                " torch's consolidation writes zeros for numbers and for absent shards",
            )
        names = {row.name for row in rows}
        if expected is not None and names != set(expected):
            lost, extra = sorted(set(expected) - names), sorted(names - set(expected))
            raise FormatError(
                f"{folder.root / file} and the index disagree: the index wants {len(expected)}"
                f" tensors, the file has {len(names)}; absent {lost[:3]}, not indexed {extra[:3]}",
                hint="restore the file or the index that belongs to it",
                kind="index-wrong",
            )
        for row in rows:
            if row.name in found:
                raise FormatError(
                    f"{row.name!r} is in {found[row.name].chunks[0].file} and in {file}",
                    kind="index-wrong",
                )
            chunk = Chunk(Box.whole(row.shape), file, row.start_bytes, row.length_bytes)
            layout = Layout.of(row.name, row.shape)
            found[row.name] = Stored(row.name, row.dtype, layout, (chunk,), key=row.name)
    return list(found.values())


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
