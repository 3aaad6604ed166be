"""Checkpoints whose headers claim what their files do not hold, and tensors that are not read yet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

import intarsia
from intarsia.format.dcp.metadata import TensorRecord
from intarsia.planning.manifest import Chunk
from tests.checkpoints import write_dcp, write_hf
from tests.planning.lies import at, moved, rewrite
from tests.refusals.case import refusal

Chunks = tuple[Chunk, ...]


def halves(tmp: Path) -> Path:
    """A tensor of eight rows in two chunks."""
    source = write_hf(tmp / "hf", {"w": torch.arange(16.0).reshape(8, 2)})
    intarsia.convert(source, tmp / "halves", to="dcp", mesh="fsdp=2", digests=False)
    return tmp / "halves"


def told(tmp: Path, chunks: Chunks) -> Path:
    def tell(tensors: dict[str, TensorRecord]) -> None:
        tensors["w"] = replace(tensors["w"], chunks=chunks)

    return rewrite(tmp / "halves", tmp / "checkpoint", tell)


def chunks_of(tmp: Path) -> Chunks:
    found: list[Chunk] = []
    rewrite(halves(tmp), tmp / "same", lambda tensors: found.extend(tensors["w"].chunks))
    return tuple(found)


@refusal("Chunks that overlap", area="proof")
def overlap(tmp: Path) -> None:
    first, second = chunks_of(tmp)
    intarsia.load(told(tmp, (first, moved(second, -1))), into={"w": torch.zeros(8, 2)})


@refusal("Elements that no chunk holds", area="proof")
def hole(tmp: Path) -> None:
    first, _ = chunks_of(tmp)
    with intarsia.open(told(tmp, (first,))) as found:
        found["w"][0:2]


@refusal("Chunks on the same bytes", area="proof")
def same_bytes(tmp: Path) -> None:
    first, second = chunks_of(tmp)
    intarsia.digest(told(tmp, (first, at(second, first))))


@refusal("A chunk with too few bytes", area="proof")
def few_bytes(tmp: Path) -> None:
    first, second = chunks_of(tmp)
    short = replace(second, length_bytes=16)
    intarsia.convert(told(tmp, (first, short)), tmp / "out", to="hf")


@refusal("Experts stored fused and apart", area="proof")
def fused_and_apart(tmp: Path) -> None:
    config = {
        "model_type": "qwen3_moe", "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 12,
        "moe_intermediate_size": 4, "num_experts": 1, "num_experts_per_tok": 1,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 16,
        "tie_word_embeddings": False,
    }  # fmt: skip
    name = "model.layers.0.mlp.experts"
    path = write_dcp(
        tmp / "checkpoint",
        {
            f"{name}.0.gate_proj.weight": torch.ones(4, 8),
            f"{name}.gate_up_proj": torch.ones(1, 8, 8),
        },
    )
    (path / "config.json").write_text(json.dumps(config))
    with intarsia.open(path) as found:
        found[f"{name}.0.gate_proj.weight"][...]


@refusal("Comparing a tensor that is not read", area="lazy tensors")
def compared(tmp: Path) -> None:
    with intarsia.open(write_hf(tmp / "hf", {"w": torch.ones(2, 2)})) as found:
        assert found["w"] == found["w"]


@refusal("A mask as an index", area="lazy tensors")
def masked(tmp: Path) -> None:
    with intarsia.open(write_hf(tmp / "hf", {"w": torch.ones(2, 2)})) as found:
        found["w"][[True, False]]


@refusal("A NumPy array of bfloat16", area="lazy tensors")
def no_numpy(tmp: Path) -> None:
    import numpy as np

    with intarsia.open(write_hf(tmp / "hf", {"w": torch.ones(2, dtype=torch.bfloat16)})) as found:
        np.asarray(found["w"])
