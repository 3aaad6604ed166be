"""A mesh cuts a weight between blocks, and its scales with it, or neither."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.mesh import Box, Mesh
from tests.checkpoints import write_hf
from tests.quantised.models import llama, mixtral
from tests.quantised.schemes import SCHEMES, compressed, fp8, fp8_of, mxfp4_of

MESHES = (
    "tp=2",
    "tp=3",
    "fsdp=2",
    "fsdp=3",
    "tp=2,fsdp=3",
    "tp=4,fsdp=2,pp=2",
    "ep=2,etp=2,fsdp=2",
)


def boxes(path: Path, mesh: str) -> dict[str, list[Box | None]]:
    where = Mesh.parse(mesh)
    with intarsia.open(path) as checkpoint:
        return {
            s.name: [where.box(s.shape, s.rule, rank) for rank in range(where.size)]
            for s in checkpoint.manifest.stored.values()
        }


def covers(weight: Box | None, scale: Box | None, block: tuple[int, int]) -> bool:
    """Whether a rank holds the scales of exactly the blocks that it has a part of, all of them whole."""
    if weight is None or scale is None:
        return weight is scale
    if not weight.size:
        return not scale.size
    spans = zip(
        weight.offsets[-2:],
        weight.shape[-2:],
        scale.offsets[-2:],
        scale.shape[-2:],
        block,
        strict=True,
    )
    fits = all(o // b == p and -(-(o + n) // b) == p + m for o, n, p, m, b in spans)
    return fits and weight.offsets[:-2] == scale.offsets[:-2] and weight.shape[:-2] == scale.shape[:-2]  # fmt: skip


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("block", [(8, 8), (16, 32), (128, 128), (40, 24)])
@pytest.mark.one_in(3)
def test_every_rank_holds_the_scales_of_its_blocks(
    tmp_path: Path, mesh: str, block: tuple[int, int]
) -> None:
    tensors, config = mixtral()
    said = {"quant_method": "fp8", "weight_block_size": list(block)}
    src = write_hf(tmp_path / "hf", fp8(tensors, block), config | {"quantization_config": said})
    found, size = boxes(src, mesh), Mesh.parse(mesh).size
    scales = [n for n in found if n.endswith("_scale_inv")]
    assert scales
    for name in scales:
        weight = name.removesuffix("_scale_inv")
        held = [(found[weight][r], found[name][r]) for r in range(size)]
        assert all(covers(w, s, block) for w, s in held), weight
        for box, _ in held:
            edges = [] if box is None or not box.size else zip(box.offsets, box.shape, block, tensors[weight].shape, strict=True)  # fmt: skip
            assert all(o % b == 0 and ((o + n) % b == 0 or o + n == whole) for o, n, b, whole in edges)  # fmt: skip


def test_a_weight_is_cut_where_its_blocks_allow_and_whole_elsewhere(tmp_path: Path) -> None:
    tensors, config = llama()
    said = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    src = write_hf(tmp_path / "hf", fp8(tensors, (16, 16)), config | {"quantization_config": said})
    down = "model.layers.0.mlp.down_proj.weight"  # 64 x 96, cut by columns
    by_two, by_four = boxes(src, "tp=2"), boxes(src, "tp=4")
    assert by_two[down][1] == Box((0, 48), (64, 48))
    assert by_two[f"{down}_scale_inv"][1] == Box((0, 3), (4, 3))
    assert by_four[down][1] == Box.whole((64, 96))
    assert by_four[f"{down}_scale_inv"][1] == Box.whole((4, 6))


def test_one_scale_for_a_row_goes_with_its_row_and_columns_are_cut_freely(tmp_path: Path) -> None:
    make, said = SCHEMES["fp8 rows"]
    tensors, config = llama()
    src = write_hf(tmp_path / "hf", make(tensors), config | {"quantization_config": said})
    found = boxes(src, "tp=2")
    down, up = "model.layers.0.mlp.down_proj.weight", "model.layers.0.mlp.up_proj.weight"
    assert found[down][1] == Box((0, 48), (64, 48))
    assert found[f"{down}_scale"][1] == Box.whole((64, 1))
    assert found[up][1] == Box((48, 0), (48, 64))
    assert found[f"{up}_scale"][1] == Box((48, 0), (48, 1))


@pytest.mark.parametrize("scheme", ["awq", "gptq", "nf4", "nf4 in bf16", "int8", "torchao", "aqlm"])
def test_schemes_whose_order_is_their_own_are_not_cut_and_stay_on_their_ranks(
    tmp_path: Path, scheme: str
) -> None:
    make, said = SCHEMES[scheme]
    tensors, config = mixtral()
    src = write_hf(tmp_path / "hf", make(tensors), config | {"quantization_config": said})
    found = boxes(src, "tp=2,fsdp=3,ep=2,pp=2")
    with intarsia.open(src) as checkpoint:
        parts = checkpoint.manifest.quantised.by_part
        for name, (w, _) in parts.items():
            assert {b for b in found[name] if b} == {
                Box.whole(checkpoint.manifest.stored[name].shape)
            }
            here = [b is None for b in found[name]]
            assert here == [b is None for b in found[w.main.name]]
            if ".experts." in name:
                assert any(here)


@pytest.mark.parametrize("scheme", ["int4", "nvfp4", "nvfp4 compressed"])
def test_packed_numbers_are_cut_between_groups(tmp_path: Path, scheme: str) -> None:
    make, said = SCHEMES[scheme]
    tensors, config = llama(intermediate_size=128)
    src = write_hf(tmp_path / "hf", make(tensors), config | {"quantization_config": said})
    found = boxes(src, "tp=2")
    with intarsia.open(src) as checkpoint:
        stored = checkpoint.manifest.stored
        w = next(w for w in checkpoint.manifest.quantised.weights if "0.mlp.down_proj" in w.of)
        scale = next(p.name for p in w.others if p.name.endswith("weight_scale"))
        for name in (w.main.name, scale):
            rows, columns = stored[name].shape
            assert found[name][1] == Box((0, columns // 2), (rows, columns // 2))


def test_experts_in_one_tensor_are_cut_with_their_scales(tmp_path: Path) -> None:
    tensors = fp8_of("m.experts.gate_up_proj", torch.randn(4, 32, 16), (8, 8), "_scale_inv")
    blocks, scales = mxfp4_of(torch.randn(4, 64, 48))
    tensors |= {"m.experts.down_proj_blocks": blocks, "m.experts.down_proj_scales": scales}
    said = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [8, 8]}}
    found = boxes(write_hf(tmp_path / "hf", tensors, said), "tp=2,fsdp=2")
    for a, b in (("gate_up_proj", "gate_up_proj_scale_inv"), ("down_proj_blocks", "down_proj_scales")):  # fmt: skip
        for x, y in zip(found[f"m.experts.{a}"], found[f"m.experts.{b}"], strict=True):
            assert x is not None
            assert y is not None
            assert (x.offsets[0], x.shape[0]) == (y.offsets[0], y.shape[0])
            assert x.shape[0] == 1


def test_a_scale_of_columns_is_not_taken_for_one_of_rows(tmp_path: Path) -> None:
    tensors = {
        "a.q_proj.weight": torch.ones(8, 8).to(torch.float8_e4m3fn),
        "a.q_proj.weight_scale": torch.ones(8),
        "b.q_proj.weight": torch.ones(8, 8).to(torch.float8_e4m3fn),
        "b.q_proj.weight_scale": torch.ones(8, 1),
        "b.q_proj.pre_quant_scale": torch.ones(8),
    }
    found = boxes(write_hf(tmp_path / "hf", tensors), "tp=2")
    assert found["a.q_proj.weight"] == [Box.whole((8, 8))] * 2
    assert found["a.q_proj.weight_scale"] == [Box.whole((8,))] * 2
    assert found["b.q_proj.weight"][1] == Box((4, 0), (4, 8))
    assert found["b.q_proj.weight_scale"][1] == Box((4, 0), (4, 1))
    assert found["b.q_proj.pre_quant_scale"][1] == Box.whole((8,))


def test_numbers_that_lie_across_words_are_not_cut(tmp_path: Path) -> None:
    said = compressed("pack-quantized", num_bits=3, type="int", strategy="channel")
    tensors = {
        "a.q_proj.weight_packed": torch.ones(64, 12, dtype=torch.int32),
        "a.q_proj.weight_scale": torch.ones(64, 1),
        "a.q_proj.weight_shape": torch.tensor([64, 128]),
    }
    found = boxes(write_hf(tmp_path / "hf", tensors, {"quantization_config": said}), "tp=2,fsdp=2")
    assert found["a.q_proj.weight_packed"] == [Box.whole((64, 12))] * 4


def test_a_vector_with_one_scale_is_cut_like_any_other(tmp_path: Path) -> None:
    tensors = {"a.weight": torch.ones(6).to(torch.float8_e4m3fn), "a.weight_scale": torch.ones(())}
    write_hf(tmp_path, tensors)
    held = boxes(tmp_path, "fsdp=2")
    assert held["a.weight_scale"] == [Box((), ()), Box((), ())]
    assert [box and box.shape for box in held["a.weight"]] == [(3,), (3,)]
