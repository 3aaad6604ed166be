"""Scales that are exponents of two, or one number, are called scaled where they are, and nothing where any number would do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from tests.checkpoints import normal_tensor, write_hf
from tests.quantised.models import llama
from tests.quantised.schemes import SCHEMES, mxfp4_of, nvfp4

NAME = "model.layers.0.mlp.experts.gate_up_proj"
WHOLE = "model.layers.1.mlp.up_proj.weight_scale_2"


def gpt_oss(path: Path, scales: torch.Tensor | None = None) -> Path:
    blocks, own = mxfp4_of(normal_tensor((2, 64, 64), torch.bfloat16) * 0.02)
    tensors = {f"{NAME}_blocks": blocks, f"{NAME}_scales": own if scales is None else scales}
    return write_hf(path, tensors, {"quantization_config": {"quant_method": "mxfp4"}})


def exponents() -> torch.Tensor:
    return mxfp4_of(normal_tensor((2, 64, 64), torch.bfloat16) * 0.02)[1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda x: 254 - x, "one divided by"),
        (lambda x: x + 3, "times 2^3"),
        (lambda x: x - 2, "times 2^-2"),
        (lambda x: x - 127, "times 2^-127"),
    ],
)
def test_exponents_that_are_all_changed_alike_are_scaled(
    tmp_path: Path, change: object, text: str
) -> None:
    assert callable(change)
    other = gpt_oss(tmp_path / "b", change(exponents()))
    (found,) = intarsia.verify(gpt_oss(tmp_path / "a"), other).different
    assert (found.kind, found.tensor) == ("scaled", f"{NAME}_scales")
    assert text in found.diagnosis


def test_exponents_that_differ_otherwise_are_not_explained_so(tmp_path: Path) -> None:
    scales = exponents() + 3
    scales[0, 0, 0] += 1
    other = gpt_oss(tmp_path / "b", scales)
    (found,) = intarsia.verify(gpt_oss(tmp_path / "a"), other).different
    assert found.kind != "scaled"


@pytest.mark.parametrize(
    ("whole", "kind"),
    [(1 / torch.tensor(3.1244e-05), "scaled"), (torch.tensor(0.75), "unexplained")],
)
def test_one_number_is_inverted_or_another_and_not_initialised_again(
    tmp_path: Path, whole: torch.Tensor, kind: str
) -> None:
    tensors, config = llama()
    config |= {"quantization_config": SCHEMES["nvfp4"][1]}
    made = nvfp4(tensors) | {WHOLE: torch.tensor(3.1244e-05)}
    a, b = (write_hf(tmp_path / n, made | x, config) for n, x in (("a", {}), ("b", {WHOLE: whole})))
    (found,) = intarsia.verify(a, b).different
    assert (found.tensor, found.kind) == (WHOLE, kind)


def test_whole_numbers_beside_those_of_a_fused_part_are_compared(tmp_path: Path) -> None:
    names = [f"model.layers.0.mlp.{role}.group_size" for role in ("gate_proj", "up_proj")]
    a, b = (
        write_hf(tmp_path / f"{k}", {n: torch.tensor(k, dtype=torch.int32) for n in names}, None)
        for k in (64, 33)
    )
    found = intarsia.verify(a, b).different
    assert [(x.tensor, x.kind) for x in found] == [(n, "unexplained") for n in names]
