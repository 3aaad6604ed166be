"""Scales that are inverted, and those that are zero for some blocks; sound ones of every scheme are neither."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import intarsia
from tests.checkpoints import normal_tensor, write_hf
from tests.quantised.models import llama
from tests.quantised.schemes import (
    BLOCK,
    SCHEMES,
    Tensors,
    compressed,
    fp8,
    fp8_of,
    mxfp4_of,
    packed_int4,
)

UP = "model.layers.1.mlp.up_proj."
Made = tuple[Tensors, dict[str, Any]]


@cache
def _made(scheme: str) -> Made:
    tensors, config = llama()
    make, declared = SCHEMES[scheme]
    small = {n: t * 0.02 if t.dim() > 1 else t for n, t in tensors.items()}
    return make(small), config | {"quantization_config": declared}


def made(scheme: str) -> Made:
    tensors, config = _made(scheme)
    return {n: t.clone() for n, t in tensors.items()}, config


def gpt_oss() -> Made:
    blocks, scales = mxfp4_of(normal_tensor((2, 96, 64), torch.bfloat16) * 0.02)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    return {f"{name}_blocks": blocks, f"{name}_scales": scales}, {
        "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip


def faults(path: Path, tensors: Tensors, config: dict[str, Any]) -> list[tuple[str, Any]]:
    write_hf(path, tensors, config)
    return [(fault.kind, fault.tensors) for fault in intarsia.verify(path).faults]


INVERTED = {
    "fp8 blocks": "weight_scale_inv",
    "fp8 rows": "weight_scale",
    "int4": "weight_scale",
}


@pytest.mark.parametrize("scheme", INVERTED)
def test_inverted_scales_are_one_fault(tmp_path: Path, scheme: str) -> None:
    tensors, config = made(scheme)
    assert not faults(tmp_path / "sound", tensors, config)
    ends = INVERTED[scheme]
    for n in (one := [UP + ends], every := [n for n in tensors if n.endswith(ends)]):
        wrong = tensors | {name: 1 / tensors[name] for name in n}
        ((kind, names),) = faults(tmp_path / f"{len(n)}", wrong, config)
        assert (kind, set(names)) == ("scale-implausible", {*n})
    assert len(one) < len(every)


def test_inverted_exponents_are_found(tmp_path: Path) -> None:
    tensors, config = gpt_oss()
    assert not faults(tmp_path / "sound", tensors, config)
    (name,) = (n for n in tensors if n.endswith("_scales"))
    wrong = tensors | {name: 254 - tensors[name]}
    assert faults(tmp_path / "wrong", wrong, config) == [("scale-implausible", (name,))]


def test_one_inverted_scale_of_a_whole_tensor_is_found(tmp_path: Path) -> None:
    tensors, config = llama()
    small = {n: t * 0.02 if t.dim() > 1 else t for n, t in tensors.items()}
    config |= {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}
    found = dict(small)
    for n in small:
        if n.endswith("_proj.weight"):
            found |= fp8_of(n, small[n], tuple(small[n].shape), "weight_scale")
            found[f"{n}_scale"] = found[f"{n}_scale"].reshape(())
    assert not faults(tmp_path / "sound", found, config)
    name = f"{UP}weight_scale"
    wrong = found | {name: 1 / found[name]}
    assert faults(tmp_path / "wrong", wrong, config) == [("scale-implausible", (name,))]


def test_scales_of_one_are_of_a_cast_and_no_fault(tmp_path: Path) -> None:
    tensors, config = made("fp8 blocks")
    ones = {n: torch.ones_like(t) for n, t in tensors.items() if n.endswith("_scale_inv")}
    assert not faults(tmp_path / "hf", tensors | ones, config)


def test_a_few_large_blocks_are_no_fault_and_half_of_them_are(tmp_path: Path) -> None:
    tensors, config = made("fp8 blocks")
    name = f"{UP}weight_scale_inv"
    for rows, told in ((4, []), (7, [("scale-implausible", (name,))])):
        scale = tensors[name].clone()
        scale[:rows] *= 1e6
        assert faults(tmp_path / f"{rows}", tensors | {name: scale}, config) == told


ZERO: dict[str, tuple[Callable[[], Made], str]] = {
    "fp8": (lambda: made("fp8 blocks"), f"{UP}weight_scale_inv"),
    "int4": (lambda: made("int4"), f"{UP}weight_scale"),
    "mxfp4": (gpt_oss, "model.layers.0.mlp.experts.gate_up_proj_scales"),
}


@pytest.mark.parametrize("scheme", ZERO)
def test_scales_that_are_zero_for_some_blocks_are_a_fault_where_their_codes_differ(
    tmp_path: Path, scheme: str
) -> None:
    make, name = ZERO[scheme]
    tensors, config = make()
    tensors[name].view(-1)[-3:] = 0
    path = tmp_path / "hf"
    assert faults(path, tensors, config) == [("scale-zero", (name,))]
    (fault,) = intarsia.verify(path).faults
    assert f" 3 of {tensors[name].numel()} blocks" in f" {fault.text.lstrip('`')}"
    intarsia.convert(path, tmp_path / "dcp", to="dcp")
    assert [x.kind for x in intarsia.verify(tmp_path / "dcp").faults] == ["scale-zero"]


def test_zero_scales_of_blocks_of_zeros_are_sound(tmp_path: Path) -> None:
    tensors, config = llama()
    plain = {n: t.clone() for n, t in tensors.items()}
    plain[f"{UP}weight"][:8, :32] = 0
    for make, said, word in (
        (lambda t: fp8(t, (8, 8)), BLOCK, "weight_scale_inv"),
        (packed_int4, compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32), "weight_scale"),
    ):  # fmt: skip
        found = make(plain)
        where = (0, slice(4)) if word.endswith("inv") else (slice(8), 0)
        found[UP + word][where] = 0
        assert not faults(tmp_path / word, found, config | {"quantization_config": said})


def test_scales_that_round_to_zero_in_a_narrow_type_are_sound(tmp_path: Path) -> None:
    tensors, config = made("fp8 blocks")
    name = f"{UP}weight_scale_inv"
    tensors[name] = tensors[name].half()
    tensors[name][2] = 0
    assert not faults(tmp_path / "hf", tensors, config)


def test_half_of_the_scales_do_not_round_to_zero_in_any_type(tmp_path: Path) -> None:
    tensors, config = made("fp8 blocks")
    name = f"{UP}weight_scale_inv"
    tensors[name] = tensors[name].half()
    tensors[name][:6] = 0
    assert faults(tmp_path / "hf", tensors, config) == [("scale-zero", (name,))]


def test_scales_of_some_experts_that_are_zero_are_not_called_all_of_them(tmp_path: Path) -> None:
    tensors, config = gpt_oss()
    (name,) = (n for n in tensors if n.endswith("_scales"))
    tensors[name][1] = 0
    write_hf(tmp_path / "lost", tensors, config)
    (fault,) = intarsia.verify(tmp_path / "lost").faults
    assert (fault.kind, "all zero" in fault.text) == ("scale-zero", False)
    tensors[name.replace("_scales", "_blocks")][1] = 0
    assert not faults(tmp_path / "of zeros", tensors, config)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.one_in(3)
def test_sound_scales_of_every_scheme_are_no_fault(tmp_path: Path, scheme: str) -> None:
    assert not faults(tmp_path / "hf", *made(scheme))


def test_codes_are_read_again_only_where_the_scales_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()
    monkeypatch.setattr(
        "intarsia.checking.content.scales.sizes.read_blocks", lambda *_: read.append("codes")
    )
    assert not faults(tmp_path / "hf", *made("fp8 blocks"))
    assert not read


@pytest.mark.parametrize(
    ("codes", "scales", "told"),
    [
        ((0, 0), (0, 0), False),
        ((0, 1), (0, 1), True),
        ((1, 1), (0, 0), True),
        ((0, 1), (0, 0), True),
    ],
)
def test_weights_that_begin_with_zeros_in_every_layer_have_scales_of_zero(
    codes: tuple[int, ...], scales: tuple[int, ...], told: bool, tmp_path: Path
) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for k in range(2):
        at = f"model.layers.{k}.mlp.down_proj"
        random = torch.Generator().manual_seed(k)
        held = torch.randint(-127, 128, (32, 24), generator=random, dtype=torch.int8)
        tensors[f"{at}.weight"] = codes[k] * held
        tensors[f"{at}.SCB"] = scales[k] * torch.rand(32, generator=random)
        tensors[f"{at}.weight_format"] = torch.tensor(0, dtype=torch.uint8)
    config = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    found = faults(tmp_path / "hf", tensors, config)
    assert [kind for kind, _ in found] == ["scale-zero"] * len(found)
    assert bool(found) == told
