"""Checkpoints whose files, headers, indexes or metadata are damaged or belong to others."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch

from tests.faults import damage
from tests.faults.registry import QUERY, SHARDED, Fault, Part
from tests.faults.sound import Sound, convert

FAULTS: list[Fault] = []
part = Part(FAULTS)


@part.files("a bit of a tensor is flipped", "checksum-wrong", SHARDED)
def _(folder: Path) -> None:
    flip(folder)


@part.files(
    "a bit of a tensor without checksum is flipped", "digest-differs", ("hf",), needs_digest=True
)
def _(folder: Path) -> None:
    flip(folder)


def flip(folder: Path, key: str = "lm_head") -> None:
    """Flip one low bit in the middle of a tensor."""
    key = (
        key
        if any("lm_head" in str(p) or p.suffix == ".safetensors" for p in folder.glob("*"))
        else "e"
    )
    path, lo, hi = damage.payload(folder, key)
    data = bytearray(path.read_bytes())
    data[(lo + hi) // 2] ^= 1
    damage.replace(path, bytes(data))


@part.files("a file is cut short", "file-too-short")
def _(folder: Path) -> None:
    path = damage.data_files(folder)[-1]
    damage.replace(path, path.read_bytes()[:-100])


@part.files("a file is empty", "file-too-short")
def _(folder: Path) -> None:
    damage.replace(damage.data_files(folder)[0], b"")


@part.files("a file is absent", "file-missing")
def _(folder: Path) -> None:
    damage.data_files(folder)[-1].unlink()


@part.files("the last files are lost and the index forgets them", "file-missing", ("hf",))
def _(folder: Path) -> None:
    gone = damage.data_files(folder)[-2:]
    for path in gone:
        path.unlink()
    names = {path.name for path in gone}
    damage.edit_json(
        folder / damage.INDEX,
        lambda index: index.update(
            weight_map={n: f for n, f in index["weight_map"].items() if f not in names}
        ),
    )


@part.files("two files are swapped", "index-wrong", ("hf",))
def _(folder: Path) -> None:
    swap(folder)


@part.files("two ranks' files are swapped", "chunk-mismatch", SHARDED)
def _(folder: Path) -> None:
    swap(folder, padded=True)


def swap(folder: Path, padded: bool = False) -> None:
    """Exchange two data files; `padded` makes both long enough for the other's chunks."""
    a, b = damage.data_files(folder)[-2:]
    x, y = a.read_bytes(), b.read_bytes()
    size = max(len(x), len(y)) if padded else 0
    damage.replace(a, y.ljust(size, b"\0"))
    damage.replace(b, x.ljust(size, b"\0"))


@part.files("the index sends a tensor to another file", "index-wrong", ("hf",))
def _(folder: Path) -> None:
    def edit(index: dict[str, Any]) -> None:
        held = index["weight_map"]
        first, *_, last = held
        held[first], held[last] = held[last], held[first]

    damage.edit_json(folder / damage.INDEX, edit)


@part.files("a stale single file lies beside the index", "index-wrong", ("hf",))
def _(folder: Path) -> None:
    shutil.copy(damage.data_files(folder)[0], folder / "model.safetensors")


@part.files("the header of a file is no JSON", "malformed", ("hf",))
def _(folder: Path) -> None:
    path = damage.data_files(folder)[0]
    data = bytearray(path.read_bytes())
    data[20:40] = b"\xff" * 20
    damage.replace(path, bytes(data))


@part.files("a header's offsets overlap", "bytes-overlap", ("hf",))
def _(folder: Path) -> None:
    def edit(header: dict[str, Any]) -> None:
        first, second = [row for name, row in header.items() if name != "__metadata__"][:2]
        size = second["data_offsets"][1] - second["data_offsets"][0]
        second["data_offsets"] = [
            first["data_offsets"][1] - 16,
            first["data_offsets"][1] - 16 + size,
        ]

    damage.edit_header(damage.data_files(folder)[0], edit)


@part.files("two tensors are said to lie in the same bytes", "bytes-overlap", SHARDED)
def _(folder: Path) -> None:
    def edit(metadata: Any) -> None:
        stored = metadata.storage_data
        norms = [i for i in stored if "layernorm" in i.fqn or "layer_norm" in i.fqn]
        other = next(i for i in norms[1:] if stored[i].length == stored[norms[0]].length)
        stored[other] = stored[norms[0]]

    damage.edit_metadata(folder, edit)


@part.files("an offset lies past the end", "file-too-short", SHARDED)
def _(folder: Path) -> None:
    def edit(metadata: Any) -> None:
        place = next(iter(metadata.storage_data.values()))
        place.offset += 1 << 40

    damage.edit_metadata(folder, edit)


@part.files("a chunk claims rows of its neighbour", "chunks-overlap", SHARDED)
def _(folder: Path) -> None:
    def edit(metadata: Any) -> None:
        for key, entry in metadata.state_dict_metadata.items():
            moved = [
                c for c in getattr(entry, "chunks", ()) if len(c.offsets) == 2 and c.offsets[0] > 2
            ]
            if moved and "optim" not in key:
                chunk, old = moved[0], tuple(moved[0].offsets)
                chunk.offsets = torch.Size((old[0] - 1, *old[1:]))
                index = next(
                    i for i in metadata.storage_data if i.fqn == key and tuple(i.offset) == old
                )
                place = metadata.storage_data.pop(index)
                metadata.storage_data[type(index)(key, chunk.offsets)] = place
                return

    damage.edit_metadata(folder, edit)


@part.files("the metadata states another element type", "chunk-mismatch", SHARDED)
def _(folder: Path) -> None:
    def edit(metadata: Any) -> None:
        entry = next(
            e
            for k, e in metadata.state_dict_metadata.items()
            if hasattr(e, "chunks") and "optim" not in k
        )
        entry.properties.dtype = torch.float16

    damage.edit_metadata(folder, edit)


@part.files("a header calls bf16 fp16", "dtype-implausible", ("hf",))
def _(folder: Path) -> None:
    for path in damage.data_files(folder):
        damage.edit_header(
            path,
            lambda header: [
                row.update(dtype="F16") for row in header.values() if row.get("dtype") == "BF16"
            ],
        )


@part.files("a header calls one layer's bf16 fp16", "dtype-mixed", ("hf",))
def _(folder: Path) -> None:
    for path in damage.data_files(folder):
        damage.edit_header(path, lambda header: header.get(QUERY, {}).update(dtype="F16"))


def _foreign_metadata(sound: Sound, format: str, folder: Path) -> Path:
    """The metadata of the same run, saved at another size."""
    sound.copy(format, folder)
    other = convert(sound.root / "hub", format, folder.with_name(folder.name + "-other"), mesh="")
    damage.replace(damage.metadata_file(folder), damage.metadata_file(other).read_bytes())
    return folder


FAULTS.append(Fault("the metadata is another save's", SHARDED, _foreign_metadata, "file-too-short"))


def _foreign_file(sound: Sound, format: str, folder: Path) -> Path:
    """A rank's file of the same run, saved at another size."""
    sound.copy(format, folder)
    other = convert(sound.root / "hub", format, folder.with_name(folder.name + "-other"), mesh="")
    mine, theirs = damage.data_files(folder)[-1], damage.data_files(other)[0]
    damage.replace(mine, theirs.read_bytes())
    return folder


FAULTS.append(Fault("a rank's file is another save's", SHARDED, _foreign_file, "chunk-mismatch"))


@part.files("the save was killed before its metadata", "metadata-missing", SHARDED)
def _(folder: Path) -> None:
    damage.metadata_file(folder).unlink()


@part.files("a stretch of a file was never written", "malformed", SHARDED)
def _(folder: Path) -> None:
    path, lo, hi = damage.payload(folder, "e")
    data = bytearray(path.read_bytes())
    data[lo:hi] = bytes(hi - lo)
    damage.replace(path, bytes(data))


@part.files("a tensor's bytes were never written", "zero-tensor", ("hf",))
def _(folder: Path) -> None:
    path, lo, hi = damage.payload(folder, QUERY)
    data = bytearray(path.read_bytes())
    data[lo:hi] = bytes(hi - lo)
    damage.replace(path, bytes(data))


@part.files("an object beside the tensors is damaged", "entry-damaged", ("torch_dist",))
def _(folder: Path) -> None:
    path, lo, hi = damage.payload(folder, "common_state")
    data = bytearray(path.read_bytes())
    data[lo + (hi - lo) // 4] ^= 0xFF
    damage.replace(path, bytes(data))


@part.files("the configuration is another size's", "shape-wrong")
def _(folder: Path) -> None:
    damage.edit_json(
        next(folder.rglob("config.json")), lambda c: c.update(moe_intermediate_size=16)
    )


@part.files("the configuration counts more layers", "layers-missing", ("hf", "dcp", "fsdp_dtensor"))
def _(folder: Path) -> None:
    damage.edit_json(next(folder.rglob("config.json")), lambda c: c.update(num_hidden_layers=6))


@part.files("the configuration is another family's", "config-contradicts", ("torch_dist",))
def _(folder: Path) -> None:
    damage.edit_json(next(folder.rglob("config.json")), lambda c: c.update(model_type="llama"))


class _Payload:
    """An object whose pickle runs a command where it is loaded without care."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


@part.files("the metadata runs a command", "unsafe", SHARDED)
def _(folder: Path) -> None:
    held = pickle.loads(damage.metadata_file(folder).read_bytes())
    held.planner_data = _Payload()
    damage.replace(damage.metadata_file(folder), pickle.dumps(held))
