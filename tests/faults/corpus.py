"""Faulty checkpoints that one look at them alone gives away, each made from the sound one."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.checkpoints import write_dcp
from tests.faults import damage
from tests.faults.sound import CONFIG, FORMATS, Edit, Sound, Tensors, convert, trained, weights, write

Make = Callable[[Sound, str, Path], Path]
SHARDED = FORMATS[1:]


@dataclass(frozen=True)
class Fault:
    """A way to go wrong: `make(sound, format, folder)` writes a checkpoint that has it.

    `kind` is what `verify` must call it.  `needs_digest`: the bytes alone do not tell;
    `needs_reference`: only another checkpoint does.
    """

    name: str
    formats: tuple[str, ...]
    make: Make
    kind: str
    needs_reference: bool = False
    needs_digest: bool = False


FAULTS: list[Fault] = []


def numbers(name: str, kind: str, formats: tuple[str, ...] = FORMATS, **config: Any) -> Callable[[Edit], Edit]:
    """A fault of the numbers alone: the files around them are as they should be."""

    def register(edit: Edit) -> Edit:
        def make(sound: Sound, format: str, folder: Path) -> Path:
            return sound.edited(format, folder, edit, **config)

        FAULTS.append(Fault(name, formats, make, kind))
        return edit

    return register


def files(
    name: str, kind: str, formats: tuple[str, ...] = FORMATS, needs_digest: bool = False
) -> Callable[[Callable[[Path], None]], Callable[[Path], None]]:
    """A fault of files: a copy of the sound checkpoint is damaged in place."""

    def register(hurt: Callable[[Path], None]) -> Callable[[Path], None]:
        def make(sound: Sound, format: str, folder: Path) -> Path:
            hurt(sound.copy(format, folder))
            return folder

        FAULTS.append(Fault(name, formats, make, kind, needs_digest=needs_digest))
        return hurt

    return register


def both(tensors: Tensors, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight and its main weight."""
    return tensors[name], tensors[f"optimizer.master.{name}"]


def copy(tensors: Tensors, src: str, dst: str) -> None:
    """Have `dst` hold what `src` holds, optimizer state included."""
    for kind in ("", "optimizer.master.", "optimizer.exp_avg.", "optimizer.exp_avg_sq."):
        tensors[kind + dst].copy_(tensors[kind + src])


def named(tensors: Tensors, start: str) -> list[str]:
    return [name for name in tensors if name.startswith(start)]


Q, O = "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.o_proj.weight"


# --- numbers ------------------------------------------------------------------------------------


@numbers("a block of NaN", "not-finite")
def _(tensors: Tensors) -> None:
    for x in both(tensors, O):
        x[3:5, 2:9] = float("nan")


@numbers("one infinite element", "not-finite")
def _(tensors: Tensors) -> None:
    for x in both(tensors, "model.layers.3.mlp.experts.2.down_proj.weight"):
        x[7, 3] = float("-inf")


@numbers("NaN in a moment", "not-finite")
def _(tensors: Tensors) -> None:
    tensors[f"optimizer.exp_avg.{O}"][0, 0] = float("nan")


@numbers("a rank's rows are zero", "zero-block")
def _(tensors: Tensors) -> None:
    for x in both(tensors, "lm_head.weight"):
        x[:32] = 0


@numbers("a rank's columns are zero", "zero-block")
def _(tensors: Tensors) -> None:
    for x in both(tensors, O):
        x[:, 16:] = 0


@numbers("a rank's share of every matrix is zero", "zero-block")
def _(tensors: Tensors) -> None:
    for name in [n for n in tensors if n.endswith("o_proj.weight") and not n.startswith("opt")]:
        for x in both(tensors, name):
            x[:, 16:] = 0


@numbers("a rank's share of a moment is zero", "zero-block")
def _(tensors: Tensors) -> None:
    tensors[f"optimizer.exp_avg_sq.{O}"][:, :16] = 0


@numbers("a matrix is zero", "zero-tensor")
def _(tensors: Tensors) -> None:
    for x in both(tensors, O):
        x.zero_()


@numbers("an expert is zero", "zero-tensor")
def _(tensors: Tensors) -> None:
    for part in ("gate", "up", "down"):
        for x in both(tensors, f"model.layers.2.mlp.experts.3.{part}_proj.weight"):
            x.zero_()


@numbers("a norm is zero", "zero-tensor")
def _(tensors: Tensors) -> None:
    for x in both(tensors, "model.layers.2.input_layernorm.weight"):
        x.zero_()


@numbers("a scale without axes was put together as zero", "zero-scalar", ("hf", "dcp"))
def _(tensors: Tensors) -> None:
    tensors["model.layers.0.self_attn.k_scale"] = torch.tensor(0.0)


@numbers("two experts of a layer are one", "experts-repeated")
def _(tensors: Tensors) -> None:
    for name in named(tensors, "model.layers.2.mlp.experts.0."):
        copy(tensors, name, name.replace("experts.0.", "experts.3."))


@numbers("the first rank's experts on all ranks", "expert-blocks-repeated")
def _(tensors: Tensors) -> None:
    for name in [n for n in tensors if ".experts." in n and not n.startswith("optimizer")]:
        for e in (0, 1):
            if f".experts.{e}." in name:
                copy(tensors, name, name.replace(f"experts.{e}.", f"experts.{e + 2}."))


@numbers("every expert is a copy of one", "experts-identical")
def _(tensors: Tensors) -> None:
    for name in [n for n in tensors if ".experts.0." in n and not n.startswith("optimizer")]:
        for e in (1, 2, 3):
            copy(tensors, name, name.replace("experts.0.", f"experts.{e}."))


@numbers("the first rank's columns on all ranks", "shards-repeated")
def _(tensors: Tensors) -> None:
    for x in both(tensors, O):
        x[:, 16:] = x[:, :16]


@numbers("the first rank's rows of the vocabulary on all ranks", "shards-repeated")
def _(tensors: Tensors) -> None:
    for x in both(tensors, "model.embed_tokens.weight"):
        x[32:] = x[:32]


@numbers("one of four ranks saved another's rows", "shards-repeated")
def _(tensors: Tensors) -> None:
    for x in both(tensors, "lm_head.weight"):
        x[48:] = x[16:32]


@numbers("a pipeline stage was saved twice", "layers-repeated")
def _(tensors: Tensors) -> None:
    for layer in (0, 1):
        for name in named(tensors, f"model.layers.{layer}."):
            copy(tensors, name, name.replace(f"layers.{layer}.", f"layers.{layer + 2}."))


@numbers("one matrix is another layer's", "tensor-repeated")
def _(tensors: Tensors) -> None:
    copy(tensors, O, O.replace("layers.1.", "layers.3."))


@numbers("tied weights were trained apart", "tied-differ", ("hf", "dcp"), tie_word_embeddings=True)
def _(tensors: Tensors) -> None:
    """The configuration ties what the tensors already hold twice, and differently."""


@numbers("main weights went through bf16", "masters-rounded")
def _(tensors: Tensors) -> None:
    for name in named(tensors, "optimizer.master."):
        tensors[name].copy_(tensors[name].bfloat16().float())


@numbers("one main weight went through bf16", "masters-rounded")
def _(tensors: Tensors) -> None:
    x = tensors[f"optimizer.master.{O}"]
    x.copy_(x.bfloat16().float())


@numbers("a second moment is negative", "negative-variance")
def _(tensors: Tensors) -> None:
    tensors[f"optimizer.exp_avg_sq.{O}"][5] *= -1


@numbers("the moments are swapped", "negative-variance")
def _(tensors: Tensors) -> None:
    a, b = (tensors[f"optimizer.{kind}.{O}"] for kind in ("exp_avg", "exp_avg_sq"))
    held = a.clone()
    a.copy_(b)
    b.copy_(held)


@numbers("one parameter is steps behind", "steps-disagree", ("hf", "dcp", "fsdp_dtensor"))
def _(tensors: Tensors) -> None:
    tensors[f"optimizer.step.{O}"].fill_(3.0)


@numbers("a rank's weights are of an earlier step", "master-differs", ("hf", "dcp", "torch_dist"))
def _(tensors: Tensors) -> None:
    tensors["lm_head.weight"][32:] *= 0.9


@numbers("main weights are of an earlier step", "master-differs", ("hf", "dcp", "torch_dist"))
def _(tensors: Tensors) -> None:
    for name in named(tensors, "optimizer.master."):
        tensors[name] += 0.01


def _doubly_padded(sound: Sound, format: str, folder: Path) -> Path:
    tensors = dict(sound.tensors)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        for each in (name, *(f"optimizer.{k}.{name}" for k in ("master", "exp_avg", "exp_avg_sq"))):
            tensors[each] = torch.cat([tensors[each], torch.zeros_like(tensors[each])])
    if format == "hf":
        return write(tensors, folder)
    write_dcp(folder, tensors)
    shutil.copy(sound.root / "hub" / "config.json", folder)
    return folder


FAULTS.append(Fault("a vocabulary padded twice", ("hf", "dcp"), _doubly_padded, "vocabulary-padded"))


# --- what is not there --------------------------------------------------------------------------


def lost(folder: Path, name_is: Callable[[str], bool], chunk_is: Callable[..., bool]) -> None:
    """Forget tensors by their hub names, or chunks by their keys, offsets and shapes."""
    if (folder / damage.INDEX).exists():
        damage.without(folder, name_is)
    else:
        damage.drop_chunks(folder, chunk_is)


def _expert_of(key: str, offsets: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """The expert that a chunk belongs to: its name says it, or the axis of its stack."""
    words = key.split(".")
    if "experts" not in words:
        return -1
    number = next((int(w) for w in words[words.index("experts") :] if w.isdigit()), None)
    axis = 1 if "layers" in words and not _layer(key) else 0
    return number if number is not None else offsets[axis] if axis < len(offsets) else -1


def _layer(key: str) -> list[str]:
    words = key.split(".")
    at = words.index("layers") + 1 if "layers" in words else len(words)
    return [w for w in words[at : at + 1] if w.isdigit()]


def _layer_of(key: str, offsets: tuple[int, ...], shape: tuple[int, ...]) -> int:
    if "layers" not in key.split("."):
        return -1
    named_ = _layer(key)
    return int(named_[0]) if named_ else offsets[0]


@files("half of the experts are lost", "experts-missing")
def _(folder: Path) -> None:
    lost(folder, lambda name: _expert_of(name, (0, 0), ()) >= 2, lambda *c: _expert_of(*c) >= 2)


@files("only the first pipeline stage was saved", "layers-missing")
def _(folder: Path) -> None:
    lost(folder, lambda name: _layer_of(name, (0,), ()) >= 2, lambda *c: _layer_of(*c) >= 2)


@files("one tensor is lost", "tensor-missing")
def _(folder: Path) -> None:
    lost(
        folder,
        lambda name: name == "model.norm.weight",
        lambda key, *_: key.endswith(("model.norm.weight", "decoder.final_layernorm.weight"))
        and "optimizer" not in key,
    )


@files("a second moment is lost", "state-missing", SHARDED)
def _(folder: Path) -> None:
    damage.drop_chunks(folder, lambda key, *_: "exp_avg_sq" in key and ("lm_head" in key or "output_layer" in key))


@files("one rank's chunk was never stored", "elements-missing", SHARDED)
def _(folder: Path) -> None:
    gone: list[str] = []

    def first(key: str, offsets: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        vocabulary = key.endswith(("lm_head.weight", "output_layer.weight")) and "optim" not in key
        if vocabulary and offsets[0] and not gone:
            gone.append(key)
            return True
        return False

    damage.drop_chunks(folder, first)
    assert gone


@files("described but never stored", "elements-missing", SHARDED)
def _(folder: Path) -> None:
    def edit(metadata: Any) -> None:
        index = next(i for i in metadata.storage_data if "norm" in i.fqn)
        del metadata.storage_data[index]

    damage.edit_metadata(folder, edit)


# --- files --------------------------------------------------------------------------------------


@files("a bit of a tensor is flipped", "checksum-wrong", SHARDED)
def _(folder: Path) -> None:
    flip(folder)


@files("a bit of a tensor without checksum is flipped", "digest-differs", ("hf",), needs_digest=True)
def _(folder: Path) -> None:
    flip(folder)


def flip(folder: Path, key: str = "lm_head") -> None:
    """Flip one low bit in the middle of a tensor."""
    key = key if any("lm_head" in str(p) or p.suffix == ".safetensors" for p in folder.glob("*")) else "e"
    path, lo, hi = damage.payload(folder, key)
    data = bytearray(path.read_bytes())
    data[(lo + hi) // 2] ^= 1
    damage.replace(path, bytes(data))


@files("a file is cut short", "file-too-short")
def _(folder: Path) -> None:
    path = damage.data_files(folder)[-1]
    damage.replace(path, path.read_bytes()[:-100])


@files("a file is empty", "file-too-short")
def _(folder: Path) -> None:
    damage.replace(damage.data_files(folder)[0], b"")


@files("a file is absent", "file-missing")
def _(folder: Path) -> None:
    damage.data_files(folder)[-1].unlink()


@files("the last files are lost and the index forgets them", "file-missing", ("hf",))
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


@files("two files are swapped", "index-wrong", ("hf",))
def _(folder: Path) -> None:
    swap(folder)


@files("two ranks' files are swapped", "chunk-mismatch", SHARDED)
def _(folder: Path) -> None:
    swap(folder, padded=True)


def swap(folder: Path, padded: bool = False) -> None:
    """Exchange two data files; `padded` makes both long enough for the other's chunks."""
    a, b = damage.data_files(folder)[-2:]
    x, y = a.read_bytes(), b.read_bytes()
    size = max(len(x), len(y)) if padded else 0
    damage.replace(a, y.ljust(size, b"\0"))
    damage.replace(b, x.ljust(size, b"\0"))


@files("the index sends a tensor to another file", "index-wrong", ("hf",))
def _(folder: Path) -> None:
    def edit(index: dict[str, Any]) -> None:
        held = index["weight_map"]
        first, last = list(held)[0], list(held)[-1]
        held[first], held[last] = held[last], held[first]

    damage.edit_json(folder / damage.INDEX, edit)


@files("a stale single file lies beside the index", "index-wrong", ("hf",))
def _(folder: Path) -> None:
    shutil.copy(damage.data_files(folder)[0], folder / "model.safetensors")


@files("the header of a file is no JSON", "malformed", ("hf",))
def _(folder: Path) -> None:
    path = damage.data_files(folder)[0]
    data = bytearray(path.read_bytes())
    data[20:40] = b"\xff" * 20
    damage.replace(path, bytes(data))


@files("a header's offsets overlap", "bytes-overlap", ("hf",))
def _(folder: Path) -> None:
    def edit(header: dict[str, Any]) -> None:
        first, second = [row for name, row in header.items() if name != "__metadata__"][:2]
        size = second["data_offsets"][1] - second["data_offsets"][0]
        second["data_offsets"] = [first["data_offsets"][1] - 16, first["data_offsets"][1] - 16 + size]

    damage.edit_header(damage.data_files(folder)[0], edit)


@files("two tensors are said to lie in the same bytes", "bytes-overlap", SHARDED)
def _(folder: Path) -> None:
    def edit(metadata: Any) -> None:
        stored = metadata.storage_data
        norms = [i for i in stored if "layernorm" in i.fqn or "layer_norm" in i.fqn]
        other = next(i for i in norms[1:] if stored[i].length == stored[norms[0]].length)
        stored[other] = stored[norms[0]]

    damage.edit_metadata(folder, edit)


@files("an offset lies past the end", "file-too-short", SHARDED)
def _(folder: Path) -> None:
    def edit(metadata: Any) -> None:
        place = next(iter(metadata.storage_data.values()))
        place.offset += 1 << 40

    damage.edit_metadata(folder, edit)


@files("a chunk claims rows of its neighbour", "chunks-overlap", SHARDED)
def _(folder: Path) -> None:
    def edit(metadata: Any) -> None:
        for key, entry in metadata.state_dict_metadata.items():
            moved = [c for c in getattr(entry, "chunks", ()) if len(c.offsets) == 2 and c.offsets[0] > 2]
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


@files("the metadata states another element type", "chunk-mismatch", SHARDED)
def _(folder: Path) -> None:
    def edit(metadata: Any) -> None:
        entry = next(
            e
            for k, e in metadata.state_dict_metadata.items()
            if hasattr(e, "chunks") and "optim" not in k
        )
        entry.properties.dtype = torch.float16

    damage.edit_metadata(folder, edit)


@files("a header calls bf16 fp16", "dtype-implausible", ("hf",))
def _(folder: Path) -> None:
    for path in damage.data_files(folder):
        damage.edit_header(
            path,
            lambda header: [
                row.update(dtype="F16") for row in header.values() if row.get("dtype") == "BF16"
            ],
        )


@files("a header calls one layer's bf16 fp16", "dtype-mixed", ("hf",))
def _(folder: Path) -> None:
    for path in damage.data_files(folder):
        damage.edit_header(path, lambda header: header.get(Q, {}).update(dtype="F16"))


def _foreign_metadata(sound: Sound, format: str, folder: Path) -> Path:
    """The metadata of the same run, saved at another size."""
    sound.copy(format, folder)
    other = convert(sound.root / "hub", format, folder.with_name(folder.name + "-other"), mesh="")
    damage.replace(damage.metadata_file(folder), damage.metadata_file(other).read_bytes())
    return folder


FAULTS.append(
    Fault("the metadata is another save's", SHARDED, _foreign_metadata, "file-too-short")
)


def _foreign_file(sound: Sound, format: str, folder: Path) -> Path:
    """A rank's file of the same run, saved at another size."""
    sound.copy(format, folder)
    other = convert(sound.root / "hub", format, folder.with_name(folder.name + "-other"), mesh="")
    mine, theirs = damage.data_files(folder)[-1], damage.data_files(other)[0]
    damage.replace(mine, theirs.read_bytes())
    return folder


FAULTS.append(Fault("a rank's file is another save's", SHARDED, _foreign_file, "chunk-mismatch"))


@files("the save was killed before its metadata", "metadata-missing", SHARDED)
def _(folder: Path) -> None:
    damage.metadata_file(folder).unlink()


@files("a stretch of a file was never written", "malformed", SHARDED)
def _(folder: Path) -> None:
    path, lo, hi = damage.payload(folder, "e")
    data = bytearray(path.read_bytes())
    data[lo:hi] = bytes(hi - lo)
    damage.replace(path, bytes(data))


@files("a tensor's bytes were never written", "zero-tensor", ("hf",))
def _(folder: Path) -> None:
    path, lo, hi = damage.payload(folder, Q)
    data = bytearray(path.read_bytes())
    data[lo:hi] = bytes(hi - lo)
    damage.replace(path, bytes(data))


@files("an object beside the tensors is damaged", "entry-damaged", ("torch_dist",))
def _(folder: Path) -> None:
    path, lo, hi = damage.payload(folder, "common_state")
    data = bytearray(path.read_bytes())
    data[lo + (hi - lo) // 4] ^= 0xFF
    damage.replace(path, bytes(data))


@files("the configuration is another size's", "shape-wrong")
def _(folder: Path) -> None:
    damage.edit_json(next(folder.rglob("config.json")), lambda c: c.update(moe_intermediate_size=16))


@files("the configuration counts more layers", "layers-missing", ("hf", "dcp", "fsdp_dtensor"))
def _(folder: Path) -> None:
    damage.edit_json(next(folder.rglob("config.json")), lambda c: c.update(num_hidden_layers=6))


SEED = 2026


def sound_checkpoint(root: Path) -> Sound:
    """The checkpoint that every fault is made from."""
    random.seed(SEED)
    return Sound.make(root, SEED)


__all__ = ["CONFIG", "FAULTS", "Fault", "Sound", "sound_checkpoint", "trained", "weights"]
