"""Checkpoints whose files are as they should be, and whose numbers are not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch

from intarsia.format.folder.side_files import DIGESTS
from tests.checkpoints import write_dcp
from tests.faults.registry import OUT, Fault, Part
from tests.faults.sound import FORMATS, Sound, Tensors, write

FAULTS: list[Fault] = []
part = Part(FAULTS)


def both(tensors: Tensors, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight and its main weight."""
    return tensors[name], tensors[f"optimizer.master.{name}"]


def copy(tensors: Tensors, src: str, dst: str) -> None:
    """Have `dst` hold what `src` holds, optimizer state included."""
    for kind in ("", "optimizer.master.", "optimizer.exp_avg.", "optimizer.exp_avg_sq."):
        tensors[kind + dst].copy_(tensors[kind + src])


def named(tensors: Tensors, start: str) -> list[str]:
    return [name for name in tensors if name.startswith(start)]


@part.numbers("a block of NaN", "not-finite")
def _(tensors: Tensors) -> None:
    for x in both(tensors, OUT):
        x[3:5, 2:9] = float("nan")


@part.numbers("one infinite element", "not-finite")
def _(tensors: Tensors) -> None:
    for x in both(tensors, "model.layers.3.mlp.experts.2.down_proj.weight"):
        x[7, 3] = float("-inf")


@part.numbers("NaN in a moment", "not-finite")
def _(tensors: Tensors) -> None:
    tensors[f"optimizer.exp_avg.{OUT}"][0, 0] = float("nan")


@part.numbers("a rank's rows are zero", "zero-block")
def _(tensors: Tensors) -> None:
    for x in both(tensors, "lm_head.weight"):
        x[:32] = 0


@part.numbers("a rank's columns are zero", "zero-block")
def _(tensors: Tensors) -> None:
    for x in both(tensors, OUT):
        x[:, 16:] = 0


@part.numbers("a rank's share of every matrix is zero", "zero-block")
def _(tensors: Tensors) -> None:
    for name in [n for n in tensors if n.endswith("o_proj.weight") and not n.startswith("opt")]:
        for x in both(tensors, name):
            x[:, 16:] = 0


@part.numbers("a rank's share of a moment is zero", "zero-block")
def _(tensors: Tensors) -> None:
    tensors[f"optimizer.exp_avg_sq.{OUT}"][:, :16] = 0


@part.numbers("a matrix is zero", "zero-tensor")
def _(tensors: Tensors) -> None:
    for x in both(tensors, OUT):
        x.zero_()


@part.numbers("an expert is zero", "zero-tensor")
def _(tensors: Tensors) -> None:
    for part in ("gate", "up", "down"):
        for x in both(tensors, f"model.layers.2.mlp.experts.3.{part}_proj.weight"):
            x.zero_()


@part.numbers("a norm is zero", "zero-tensor")
def _(tensors: Tensors) -> None:
    for x in both(tensors, "model.layers.2.input_layernorm.weight"):
        x.zero_()


@part.numbers("a scale without axes was put together as zero", "zero-scalar", ("hf", "dcp"))
def _(tensors: Tensors) -> None:
    tensors["model.layers.0.self_attn.k_scale"] = torch.tensor(0.0)


@part.numbers("two experts of a layer are one", "experts-repeated")
def _(tensors: Tensors) -> None:
    for name in named(tensors, "model.layers.2.mlp.experts.0."):
        copy(tensors, name, name.replace("experts.0.", "experts.3."))


@part.numbers("the first rank's experts on all ranks", "expert-blocks-repeated")
def _(tensors: Tensors) -> None:
    for name in [n for n in tensors if ".experts." in n and not n.startswith("optimizer")]:
        for e in (0, 1):
            if f".experts.{e}." in name:
                copy(tensors, name, name.replace(f"experts.{e}.", f"experts.{e + 2}."))


@part.numbers("every expert is a copy of one", "experts-identical")
def _(tensors: Tensors) -> None:
    for name in [n for n in tensors if ".experts.0." in n and not n.startswith("optimizer")]:
        for e in (1, 2, 3):
            copy(tensors, name, name.replace("experts.0.", f"experts.{e}."))


@part.numbers("the first rank's columns on all ranks", "shards-repeated")
def _(tensors: Tensors) -> None:
    for x in both(tensors, OUT):
        x[:, 16:] = x[:, :16]


@part.numbers("the first rank's rows of the vocabulary on all ranks", "shards-repeated")
def _(tensors: Tensors) -> None:
    for x in both(tensors, "model.embed_tokens.weight"):
        x[32:] = x[:32]


@part.numbers("one of four ranks saved another's rows", "shards-repeated")
def _(tensors: Tensors) -> None:
    for x in both(tensors, "lm_head.weight"):
        x[48:] = x[16:32]


@part.numbers("a pipeline stage was saved twice", "layers-repeated")
def _(tensors: Tensors) -> None:
    for layer in (0, 1):
        for name in named(tensors, f"model.layers.{layer}."):
            copy(tensors, name, name.replace(f"layers.{layer}.", f"layers.{layer + 2}."))


@part.numbers("one matrix is another layer's", "tensor-repeated")
def _(tensors: Tensors) -> None:
    copy(tensors, OUT, OUT.replace("layers.1.", "layers.3."))


@part.numbers(
    "tied weights were trained apart", "tied-differ", ("hf", "dcp"), tie_word_embeddings=True
)
def _(tensors: Tensors) -> None:
    """The configuration ties what the tensors already hold twice, and differently."""


@part.numbers("main weights went through bf16", "masters-rounded")
def _(tensors: Tensors) -> None:
    for name in named(tensors, "optimizer.master."):
        tensors[name].copy_(tensors[name].bfloat16().float())


@part.numbers("one main weight went through bf16", "masters-rounded")
def _(tensors: Tensors) -> None:
    x = tensors[f"optimizer.master.{OUT}"]
    x.copy_(x.bfloat16().float())


@part.numbers("a second moment is negative", "negative-variance")
def _(tensors: Tensors) -> None:
    tensors[f"optimizer.exp_avg_sq.{OUT}"][5] *= -1


@part.numbers("the moments are swapped", "negative-variance")
def _(tensors: Tensors) -> None:
    a, b = (tensors[f"optimizer.{kind}.{OUT}"] for kind in ("exp_avg", "exp_avg_sq"))
    held = a.clone()
    a.copy_(b)
    b.copy_(held)


@part.numbers("one parameter is steps behind", "steps-disagree", ("hf", "dcp", "fsdp_dtensor"))
def _(tensors: Tensors) -> None:
    tensors[f"optimizer.step.{OUT}"].fill_(3.0)


@part.numbers(
    "a rank's weights are of an earlier step", "master-differs", ("hf", "dcp", "torch_dist")
)
def _(tensors: Tensors) -> None:
    tensors["lm_head.weight"][32:] *= 0.9


@part.numbers("main weights are of an earlier step", "master-differs", ("hf", "dcp", "torch_dist"))
def _(tensors: Tensors) -> None:
    for name in named(tensors, "optimizer.master."):
        tensors[name] += 0.01


def _padded_by_megatron(sound: Sound, format: str, folder: Path) -> Path:
    """64 tokens padded to 100 rows, and those to 136."""

    def edit(tensors: Tensors) -> None:
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            for kind in ("", *(f"optimizer.{k}." for k in ("master", "exp_avg", "exp_avg_sq"))):
                rows = tensors[kind + name]
                more = torch.zeros(72, rows.shape[1], dtype=rows.dtype)
                tensors[kind + name] = torch.cat([rows, more])

    sound.edited(format, folder, edit, vocab_size=136)
    where = next(folder.rglob("config.json"))
    where.write_text(json.dumps(json.loads(where.read_text()) | {"vocab_size": 64}))
    next(folder.rglob(DIGESTS)).unlink()
    return folder


def _doubly_padded(sound: Sound, format: str, folder: Path) -> Path:
    tensors = dict(sound.tensors)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        for each in (name, *(f"optimizer.{k}.{name}" for k in ("master", "exp_avg", "exp_avg_sq"))):
            tensors[each] = torch.cat([tensors[each], torch.zeros_like(tensors[each])])
    if format == "hf":
        return write(tensors, folder)
    if format in ("torch_dist", "fsdp_dtensor"):
        return _padded_by_megatron(sound, format, folder)
    write_dcp(folder, tensors)
    shutil.copy(sound.root / "hub" / "config.json", folder)
    return folder


FAULTS.append(Fault("a vocabulary padded twice", FORMATS, _doubly_padded, "vocabulary-padded"))
