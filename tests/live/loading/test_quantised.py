"""Quantised weights are loaded into a model that is quantised alike, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.errors import IntarsiaError, UsageError
from intarsia.mesh import Mesh
from tests.checkpoints import assert_same, read_hf, write_hf
from tests.quantised.models import llama, mixtral, stranger
from tests.quantised.schemes import SCHEMES, fp8

MODELS = {"llama": llama, "mixtral": mixtral, "stranger": stranger}
ROADS = [(scheme, list(MODELS)[k % 3]) for k, scheme in enumerate(SCHEMES)]
ROADS += [("fp8 blocks", "mixtral"), ("int4", "mixtral"), ("nf4", "stranger"), ("nvfp4", "mixtral")]
"""Each scheme with one kind of model, some with another."""


def written(folder: Path, scheme: str, kind: str) -> tuple[Path, dict[str, torch.Tensor]]:
    make, said = SCHEMES[scheme]
    tensors, config = MODELS[kind]()
    return write_hf(folder, make(tensors), config | {"quantization_config": said}), tensors


@pytest.mark.parametrize(("scheme", "kind"), ROADS)
@pytest.mark.one_in(6)
def test_what_is_quantised_alike_is_filled_bit_for_bit(
    tmp_path: Path, scheme: str, kind: str
) -> None:
    src, _ = written(tmp_path / "hf", scheme, kind)
    expected = read_hf(src)
    intarsia.convert(src, tmp_path / "dcp", to="dcp", mesh="tp=2,fsdp=2")
    for path in (src, tmp_path / "dcp"):
        into = {n: torch.zeros_like(t) for n, t in expected.items()}
        intarsia.load(path, into=into)
        assert_same(into, expected)


@pytest.mark.parametrize(("scheme", "kind"), ROADS)
@pytest.mark.one_in(3)
def test_a_plain_model_never_gets_weights_that_nobody_scaled(
    tmp_path: Path, scheme: str, kind: str
) -> None:
    src, plain = written(tmp_path / "hf", scheme, kind)
    into = {n: torch.zeros_like(t) for n, t in plain.items()}
    for strict in (True, False):
        with pytest.raises(UsageError, match="quantised"):
            intarsia.load(src, into=into, strict=strict)
    assert all(not t.any() for t in into.values())


def test_weights_of_the_stored_type_without_their_scales_are_refused(tmp_path: Path) -> None:
    src, _ = written(tmp_path / "hf", "fp8 blocks", "llama")
    stored = read_hf(src)
    bare = {n: torch.zeros_like(t) for n, t in stored.items() if "scale" not in n}
    with pytest.raises(
        UsageError, match=r"the model has no `model.*_scale_inv`: .* without their scale"
    ):
        intarsia.load(src, into=bare, strict=False)
    rounded = {n: t.bfloat16() if "scale" in n else t for n, t in stored.items()}
    with pytest.raises(UsageError, match="is F32, a part of a quantised weight"):
        intarsia.load(src, into=rounded)


def test_tensors_that_are_not_quantised_are_loaded_alone(tmp_path: Path) -> None:
    src, plain = written(tmp_path / "hf", "int4", "llama")
    name = "model.norm.weight"
    into = {name: torch.zeros_like(plain[name])}
    report = intarsia.load(src, into=into, strict=False)
    assert torch.equal(into[name], plain[name])
    assert "model.layers.0.mlp.up_proj.weight_packed" in report.unused


def test_a_model_with_scales_gets_none_from_a_plain_checkpoint(tmp_path: Path) -> None:
    tensors, config = llama()
    src = write_hf(tmp_path / "hf", tensors, config)
    into = {n: torch.zeros_like(t) for n, t in fp8(tensors, (8, 8)).items()}
    with pytest.raises(IntarsiaError, match="no source"):
        intarsia.load(src, into=into, strict=False)


@pytest.mark.parametrize("mesh", ["tp=2", "tp=2,fsdp=2", "fsdp=3"])
def test_local_shards_of_weights_and_scales_belong_together(tmp_path: Path, mesh: str) -> None:
    src, _ = written(tmp_path / "hf", "fp8 blocks", "mixtral")
    expected = read_hf(src)
    where = Mesh.parse(mesh)
    with intarsia.open(src) as checkpoint:
        for rank in range(where.size):
            into = checkpoint.shard(mesh, rank)
            held = {n: torch.zeros_like(t) for n, t in into.items()}
            intarsia.load(src, into=held, mesh=mesh, rank=rank)
            assert_same(held, into)
            stored = checkpoint.manifest.stored
            for name, t in held.items():
                box = where.box(stored[name].shape, stored[name].rule, rank)
                assert box is not None
                part = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.shape, strict=True))
                assert torch.equal(t.float(), expected[name][part].float())
