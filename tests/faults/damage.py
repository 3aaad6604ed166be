"""How the files of a checkpoint are damaged: bytes, headers, indexes, metadata."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"


def replace(path: Path, data: bytes) -> None:
    """New content for a file that may share its bytes with a sound one."""
    path.unlink()
    path.write_bytes(data)


def data_files(folder: Path) -> list[Path]:
    """The files with the model's tensors, in order."""
    return sorted([*folder.rglob("*.distcp"), *folder.glob("*.safetensors")])


def metadata_file(folder: Path) -> Path:
    return next(folder.rglob(".metadata"))


def edit_metadata(folder: Path, edit: Callable[[Any], None]) -> None:
    """Change torch's own metadata object; these files are the tests' own, so it may be loaded."""
    path = metadata_file(folder)
    metadata = pickle.loads(path.read_bytes())
    edit(metadata)
    replace(path, pickle.dumps(metadata))


def drop_chunks(
    folder: Path, lost: Callable[[str, tuple[int, ...], tuple[int, ...]], bool]
) -> None:
    """Forget the chunks of which `lost(key, offsets, shape of the tensor)` says so.

    A tensor that has no chunk left is forgotten too, unless it is a stack of layers.
    """

    def edit(metadata: Any) -> None:
        described = metadata.state_dict_metadata
        for key, entry in list(described.items()):
            if not hasattr(entry, "chunks"):
                continue
            kept = [c for c in entry.chunks if not lost(key, tuple(c.offsets), tuple(entry.size))]
            gone = {tuple(c.offsets) for c in entry.chunks} - {tuple(c.offsets) for c in kept}
            entry.chunks = kept
            if not kept and gone:
                del described[key]
            for index in list(metadata.storage_data):
                if index.fqn == key and index.offset is not None and tuple(index.offset) in gone:
                    del metadata.storage_data[index]

    edit_metadata(folder, edit)


def split_header(path: Path) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and the bytes of its tensors."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def join_header(path: Path, header: dict[str, Any], body: bytes) -> None:
    text = json.dumps(header).encode()
    replace(path, len(text).to_bytes(8, "little") + text + body)


def edit_header(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    header, body = split_header(path)
    edit(header)
    join_header(path, header, body)


def edit_json(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    held = json.loads(path.read_text())
    edit(held)
    replace(path, json.dumps(held).encode())


def without(folder: Path, lost: Callable[[str], bool]) -> None:
    """Forget tensors of a Hugging Face folder, its index following suit."""
    for path in folder.glob("*.safetensors"):
        header, body = split_header(path)
        notes = header.pop("__metadata__", None)
        kept = {name: row for name, row in header.items() if not lost(name)}
        parts, at = [], 0
        for row in kept.values():
            lo, hi = row["data_offsets"]
            parts.append(body[lo:hi])
            row["data_offsets"] = [at, at + hi - lo]
            at += hi - lo
        join_header(path, ({"__metadata__": notes} if notes else {}) | kept, b"".join(parts))
    held = lambda index: {n: f for n, f in index["weight_map"].items() if not lost(n)}  # noqa: E731
    edit_json(folder / INDEX, lambda index: index.update(weight_map=held(index)))


def payload(folder: Path, key_has: str) -> tuple[Path, int, int]:
    """A file, and the bytes in it of the largest chunk of a tensor whose key has a word."""
    if any(folder.glob("*.safetensors")):
        for path in data_files(folder):
            header, body = split_header(path)
            for name, row in header.items():
                if key_has in name:
                    start = path.stat().st_size - len(body)
                    return path, start + row["data_offsets"][0], start + row["data_offsets"][1]
        raise LookupError(key_has)
    where = metadata_file(folder)
    stored = pickle.loads(where.read_bytes()).storage_data
    index = max((i for i in stored if key_has in i.fqn), key=lambda i: stored[i].length)
    place = stored[index]
    path = where.parent / place.relative_path
    return path, place.offset, place.offset + place.length
