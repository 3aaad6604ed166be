"""Which files a Hugging Face folder consists of, and the tensors that their headers name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from intarsia.errors import FormatError, IntarsiaError
from intarsia.format.complaint import Complain, Complaint, going_on
from intarsia.format.safetensors_header import read_header
from intarsia.format.strict_json import parse_json
from intarsia.layout import Layout
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Stored
from intarsia.store.local import Folder, check_name
from intarsia.store.looking import exists, listed

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
OPTIMIZER = "optimizer"
_NUMBERED = re.compile(r"^(?P<stem>.+)-(?P<k>\d{5})-of-(?P<n>\d{5})\.safetensors$")


def files_of(folder: Folder, complain: Complain) -> dict[str, list[str] | None]:
    """The checkpoint's files; with an index, the tensors that each must hold."""
    root = folder.root
    if exists(root / INDEX):
        with going_on(complain, INDEX):
            held = dict(_indexed(folder, complain))
            if exists(root / SINGLE) and SINGLE not in held:
                error = FormatError(
                    f"{root} holds both {SINGLE} and an index of {len(held)} other files",
                    hint="they may be different weights: remove the one that is stale",
                    kind="index-wrong",
                )
                complain(Complaint(error, (SINGLE,)))
            return dict(held)
        return dict.fromkeys(p.name for p in listed(root, "*.safetensors"))
    if exists(root / SINGLE):
        return {SINGLE: None}
    names = [p.name for p in listed(root, "*.safetensors")]
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


def beside(root: Path, files: Mapping[str, Any]) -> Iterator[str]:
    """Notes of files with weights that are no part of the checkpoint."""
    others = [p.name for p in listed(root, "*.safetensors") if p.name not in files]
    if others and exists(root / INDEX):
        verb = "lies" if len(others) == 1 else "lie"
        read = "is" if len(others) == 1 else "are"
        shown = ", ".join(others[:4]) + (f", … ({len(others)} in all)" if len(others) > 4 else "")
        yield f"{shown} {verb} beside the files of the index, and {read} not read"


def extra_files(root: Path, complain: Complain) -> dict[str, list[str] | None]:
    """The files of the side folder, which may hold entries alone."""
    if not listed(root, "*.safetensors*"):
        return {}

    def here(complaint: Complaint) -> None:
        complain(replace(complaint, files=tuple(f"{OPTIMIZER}/{f}" for f in complaint.files)))

    with Folder(root) as folder:
        return {f"{OPTIMIZER}/{file}": names for file, names in files_of(folder, here).items()}


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
    absent = [file for file in held if not folder.has(file)]
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


def read_files(
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
