"""Scales that were exchanged are found by the codes that they are for; sound weights of every kind are left alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from tests.checkpoints import write_hf
from tests.quantised.schemes import BLOCK, SCHEMES, Tensors, compressed, fp8, mxfp4_of, packed_int4

NAMES = tuple(f"model.layers.{k}.mlp.up_proj." for k in range(4))
ROWS, COLUMNS = 192, 256
INT4 = compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32)


def weights(rows: float = 0.2, columns: float = 0.2, shared: bool = False) -> Tensors:
    """Weights whose rows and columns have unlike sizes, by so much; the columns' may be those of all."""
    random = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random)

    of_all = normal(1, COLUMNS)
    return {
        f"{name}weight": 0.02
        * normal(ROWS, COLUMNS)
        * (rows * normal(ROWS, 1)).exp()
        * (columns * (of_all if shared else normal(1, COLUMNS))).exp()
        for name in NAMES
    }


def words(codes: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Eight neighbours of the last axis in a word, which of them from the lowest bits on."""
    parts = codes.to(torch.int64).reshape(*codes.shape[:-1], -1, 8)[..., list(order)]
    return (parts << torch.arange(0, 32, 4)).sum(-1).to(torch.uint32).view(torch.int32)


def qweights(plain: Tensors, method: str, group: int = 32) -> Tensors:
    """Weights as GPTQ and AWQ round them: a zero point of 8, codes of 8 inputs or 8 outputs in a word."""
    found: Tensors = {}
    for name in NAMES:
        inputs = plain[f"{name}weight"].T.reshape(-1, group, ROWS)
        scales = inputs.abs().amax(1) / 7
        codes = ((inputs / scales[:, None]).round() + 8).reshape(COLUMNS, ROWS)
        if method == "gptq":
            found[f"{name}qweight"] = words(codes.T, tuple(range(8))).T.contiguous()
            found[f"{name}g_idx"] = (torch.arange(COLUMNS) // group).int()
        else:
            found[f"{name}qweight"] = words(codes, (0, 2, 4, 6, 1, 3, 5, 7))
        found[f"{name}qzeros"] = torch.full((len(scales), ROWS // 8), -0x77777778).int()
        found[f"{name}scales"] = scales.half()
    return found


def mxfp4(plain: Tensors) -> Tensors:
    found: Tensors = {}
    for name in NAMES:
        blocks, scales = mxfp4_of(plain[f"{name}weight"].T[None])
        found |= {f"{name}weight_blocks": blocks, f"{name}weight_scales": scales}
    return found


@cache
def made(scheme: str) -> tuple[Tensors, dict[str, Any], str]:
    """Quantised weights, what the configuration says, and the word of their scales."""
    plain = weights()
    if scheme in ("gptq", "awq"):
        return qweights(plain, scheme), SCHEMES[scheme][1] | {"group_size": 32}, "scales"
    if scheme == "mxfp4":
        return mxfp4(plain), {"quant_method": "mxfp4"}, "weight_scales"
    if scheme == "fp8":
        return fp8(plain, (16, 16)), BLOCK | {"weight_block_size": [16, 16]}, "weight_scale_inv"
    return packed_int4(plain), INT4, "weight_scale"


def faults(path: Path, tensors: Tensors, said: dict[str, Any]) -> list[tuple[str, Any]]:
    write_hf(path, tensors, {"quantization_config": said})
    return [(fault.kind, set(fault.tensors)) for fault in intarsia.verify(path).faults]


def exchanged(tensors: Tensors, word: str, of: list[int]) -> Tensors:
    """The same codes with the scales of those numbers."""
    names = [name + word for name in NAMES]
    return tensors | {name: tensors[names[k]].clone() for name, k in zip(names, of, strict=True)}


@pytest.mark.parametrize("scheme", ["fp8", "int4", "gptq", "awq", "mxfp4"])
def test_scales_of_two_weights_that_were_exchanged_are_one_fault(
    tmp_path: Path, scheme: str
) -> None:
    tensors, said, word = made(scheme)
    assert not faults(tmp_path / "sound", tensors, said)
    wrong = exchanged(tensors, word, [0, 2, 1, 3])
    told = [("scale-exchanged", {NAMES[1] + word, NAMES[2] + word})]
    assert faults(tmp_path / "hf", wrong, said) == told
    (fault,) = intarsia.verify(tmp_path / "hf").faults
    assert f"with the scales of `{NAMES[2]}{word}`" in fault.text
    intarsia.convert(tmp_path / "hf", tmp_path / "dcp", to="dcp", mesh="tp=2")
    assert [x.kind for x in intarsia.verify(tmp_path / "dcp").faults] == ["scale-exchanged"]


def test_scales_of_experts_that_were_exchanged_in_one_tensor_are_a_fault(tmp_path: Path) -> None:
    plain = torch.stack([x.T for x in weights().values()])
    blocks, scales = mxfp4_of(plain)
    name, said = "model.layers.0.mlp.experts.gate_up_proj", {"quant_method": "mxfp4"}
    tensors = {f"{name}_blocks": blocks, f"{name}_scales": scales}
    assert not faults(tmp_path / "sound", tensors, said)
    tensors[f"{name}_scales"] = scales[[0, 3, 2, 1]].contiguous()
    told = [("scale-exchanged", {f"{name}_scales"})]
    assert faults(tmp_path / "hf", tensors, said) == told
    (fault,) = intarsia.verify(tmp_path / "hf").faults
    assert f"codes of `{name}_blocks[1]` go with the scales of `{name}_scales[3]`" in fault.text


def test_scales_that_went_round_are_all_named(tmp_path: Path) -> None:
    tensors, said, word = made("fp8")
    told = [("scale-exchanged", {name + word for name in NAMES})]
    assert faults(tmp_path / "hf", exchanged(tensors, word, [1, 2, 3, 0]), said) == told


def test_a_copy_of_scales_whose_own_are_nowhere_is_not_taken_for_an_exchange(
    tmp_path: Path,
) -> None:
    tensors, said, word = made("fp8")
    assert not faults(tmp_path / "hf", exchanged(tensors, word, [0, 0, 2, 3]), said)


def test_codes_that_fit_the_scales_of_a_weight_whose_own_are_nowhere_accuse_nobody(
    tmp_path: Path,
) -> None:
    tensors, said, word = made("fp8")
    wrong = exchanged(tensors, word, [0, 0, 2, 3])
    first = NAMES[0] + word
    order = torch.randperm(wrong[first].numel(), generator=torch.Generator().manual_seed(1))
    wrong[first] = wrong[first].view(-1)[order].view_as(wrong[first])
    assert not faults(tmp_path / "hf", wrong, said)


def test_weights_that_are_copies_of_each_other_are_sound(tmp_path: Path) -> None:
    plain = weights()
    for name in NAMES[1:]:
        noise = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(len(name)))
        plain[f"{name}weight"] = plain[f"{NAMES[0]}weight"] + 1e-5 * noise
    said = BLOCK | {"weight_block_size": [16, 16]}
    assert "scale-exchanged" not in dict(faults(tmp_path / "hf", fp8(plain, (16, 16)), said))


@pytest.mark.parametrize(("rows", "columns", "shared"), [(0, 0, False), (1, 0.5, True), (3, 3, True)])  # fmt: skip
def test_rows_and_columns_of_unlike_sizes_are_sound(
    tmp_path: Path, rows: float, columns: float, shared: bool
) -> None:
    plain = weights(rows, columns, shared)
    assert not faults(tmp_path / "int4", packed_int4(plain), INT4)
    said = SCHEMES["fp8 rows"][1]
    assert not faults(tmp_path / "rows", fp8(plain, None, "weight_scale"), said)


def test_few_blocks_accuse_nobody(tmp_path: Path) -> None:
    said = BLOCK | {"weight_block_size": [64, 64]}
    found = fp8(weights(), (64, 64))
    assert not faults(tmp_path / "hf", exchanged(found, "weight_scale_inv", [1, 0, 3, 2]), said)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.one_in(3)
def test_codes_that_say_nothing_of_their_scales_are_sound(tmp_path: Path, scheme: str) -> None:
    make, said = SCHEMES[scheme]
    if scheme != "nf4 in fp32":
        assert not faults(tmp_path / "hf", make(weights()), said)
