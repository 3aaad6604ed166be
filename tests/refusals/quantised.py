"""Quantised checkpoints, and what needs numbers that only their scales give."""

from __future__ import annotations

from pathlib import Path

import torch

import intarsia
from tests.checkpoints import write_hf
from tests.quantised.models import llama, mixtral
from tests.quantised.schemes import BLOCK, SCHEMES, fp8
from tests.refusals.case import refusal


def _fp8(folder: Path) -> Path:
    tensors, config = mixtral()
    return write_hf(folder, fp8(tensors, (8, 8)), config | {"quantization_config": BLOCK})


@refusal("A quantised checkpoint in another element type", area="quantised")
def another_type(tmp: Path) -> None:
    intarsia.convert(_fp8(tmp / "model"), tmp / "out", to="hf", dtype="bf16")


@refusal("A quantised checkpoint for Megatron", area="quantised")
def for_megatron(tmp: Path) -> None:
    intarsia.convert(_fp8(tmp / "model"), tmp / "out", to="torch_dist", mesh="tp=2")


@refusal("A quantised checkpoint with its experts fused", area="quantised")
def fused(tmp: Path) -> None:
    intarsia.convert(_fp8(tmp / "model"), tmp / "out", to="hf", dialect="hf-fused")


@refusal("A quantised checkpoint into a model that is not quantised", area="quantised")
def into_a_plain_model(tmp: Path) -> None:
    into = {name: torch.zeros_like(tensor) for name, tensor in mixtral()[0].items()}
    intarsia.load(_fp8(tmp / "model"), into=into, strict=False)


@refusal("A quantised checkpoint into a model whose scales have another type", area="quantised")
def into_other_scales(tmp: Path) -> None:
    into = fp8(mixtral()[0], (8, 8))
    rounded = {n: t.bfloat16() if t.dtype == torch.float32 else t for n, t in into.items()}
    intarsia.load(_fp8(tmp / "model"), into=rounded)


@refusal("How far quantised weights moved", area="quantised")
def moved(tmp: Path) -> None:
    intarsia.diff(_fp8(tmp / "model"), _fp8(tmp / "later"))


@refusal("A quantised weight without its scale", area="quantised")
def without_scale(tmp: Path) -> None:
    tensors, config = llama()
    found = fp8(tensors, (8, 8))
    del found["model.layers.1.mlp.up_proj.weight_scale_inv"]
    path = write_hf(tmp / "model", found, config | {"quantization_config": BLOCK})
    intarsia.convert(path, tmp / "out", to="dcp")


@refusal("A packed weight that is not the configuration's", area="quantised")
def another_shape(tmp: Path) -> None:
    tensors, config = llama()
    make, said = SCHEMES["int4"]
    wide = config | {"quantization_config": said, "intermediate_size": 128}
    intarsia.open(write_hf(tmp / "model", make(tensors), wide))
