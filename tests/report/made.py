"""Checkpoints for pages: a sound one, one with faults, one whose names try to break out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from intarsia.dtypes import BY_NAME
from intarsia.layout import Layout
from intarsia.mesh import Box
from intarsia.planning.manifest import Chunk, Logical, Manifest, Stored
from tests.checkpoints import llama_config, model, write_hf

CONFIG = llama_config()
Q = "model.layers.1.self_attn.q_proj.weight"
V = "model.layers.0.self_attn.v_proj.weight"
NORM = "model.layers.2.input_layernorm.weight"

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "<!--<script>",
    "]]><b>&amp;&lt;",
    "\"'><svg onload=alert(1)>",
    "$data ${policy} $",
    "turned \u202e around \u2066 and \u200f back",
    "line\nfeed, bell\x07, nul\x00, separator\u2028",
    "model.layers.1.__proto__",
    "constructor",
    "layers.01.w",
    "layers.1.w",
    "layers.1.experts.2.a.experts.3.w",
    "experts.4.layers.5.w",
    "layers.*.w",
    "optimizer.exp_avg.layers.3.w",
    "optimizer.exp_avg.</script>",
    "שלום.layers.1.w",
)
"""Names that a stranger may give to tensors."""


def faulty(path: Path) -> Path:
    """A checkpoint with a NaN, a tensor of zeros, and one that is absent."""
    tensors = model(CONFIG)
    tensors[Q][3, 4] = torch.nan
    tensors[V].zero_()
    del tensors[NORM]
    return write_hf(path, tensors, CONFIG)


def manifest_of(shapes: Mapping[str, tuple[int, ...]], path: str = "made") -> Manifest:
    """A manifest of whole tensors, one after another in a file that does not exist."""
    bf16, at = BY_NAME["BF16"], 64
    stored = {}
    for name, shape in shapes.items():
        layout = Layout.of(name, shape)
        chunk = Chunk(Box.whole(shape), "one.safetensors", at, 2 * layout.size)
        stored[name] = Stored(name, bf16, layout, (chunk,), key=name)
        at += 2 * layout.size
    logical = {name: Logical(name, shape, bf16) for name, shape in shapes.items()}
    return Manifest("hf", path, stored, logical, {"one.safetensors": at})


def hostile() -> Manifest:
    return manifest_of(dict.fromkeys(HOSTILE, (3, 4)), "/tmp/</title><script>alert(1)</script>")


def large(layers: int = 60, experts: int = 384) -> Manifest:
    """About 70,000 tensors."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (512, 64)}
    for k in range(layers):
        shapes[f"model.layers.{k}.self_attn.o_proj.weight"] = (64, 64)
        for e in range(experts):
            for part in ("gate", "up", "down"):
                shapes[f"model.layers.{k}.mlp.experts.{e}.{part}_proj.weight"] = (32, 64)
    return manifest_of(shapes)
