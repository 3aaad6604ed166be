"""Zero points that differ by one throughout are in another convention of GPTQ's, which the configurations may declare."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from tests.checkpoints import write_hf
from tests.quantised.models import llama
from tests.quantised.schemes import SCHEMES, Tensors

ZEROS = "model.layers.1.mlp.up_proj.qzeros"


def made(path: Path, tensors: Tensors, format: str = "gptq") -> Path:
    said = SCHEMES["gptq"][1] | {"checkpoint_format": format}
    return write_hf(path, tensors, llama()[1] | {"quantization_config": said})


def plus_one(words: torch.Tensor, *, carried: bool) -> torch.Tensor:
    """Every number of four bits plus one, which a sum of whole words carries into the next."""
    wide = words.to(torch.int64) & 0xFFFFFFFF
    if carried:
        found = wide + 0x11111111
    else:
        each = ((wide[..., None] >> torch.arange(0, 32, 4)) + 1) & 15
        found = (each << torch.arange(0, 32, 4)).sum(-1)
    return (found & 0xFFFFFFFF).to(torch.uint32).view(torch.int32)


@pytest.mark.parametrize("carried", [False, True])
def test_zero_points_of_the_other_convention_are_named(tmp_path: Path, carried: bool) -> None:
    tensors = SCHEMES["gptq"][0](llama()[0])
    a = made(tmp_path / "a", tensors)
    zeros = [n for n in tensors if n.endswith("qzeros")]
    b = made(tmp_path / "b", tensors | {n: plus_one(tensors[n], carried=carried) for n in zeros})
    for one, other, text in ((a, b, "zero point of B is A's plus one"), (b, a, "zero point of B is A's less one")):  # fmt: skip
        report = intarsia.verify(one, other)
        (fault,) = report.faults
        assert (fault.kind, set(fault.tensors)) == ("constant-added", {*zeros})
        assert text in fault.text
        assert "and their configurations do not say so" in fault.text


@pytest.mark.parametrize("first", ["gptq", ""])
def test_conventions_that_are_declared_make_the_same_weights(tmp_path: Path, first: str) -> None:
    tensors = SCHEMES["gptq"][0](llama()[0])
    zeros = [n for n in tensors if n.endswith("qzeros")]
    a = made(tmp_path / "a", tensors, first)
    b = made(tmp_path / "b", tensors | {n: plus_one(tensors[n], carried=False) for n in zeros}, "gptq_v2")  # fmt: skip
    for one, other in ((a, b), (b, a)):
        (fault,) = intarsia.verify(one, other).faults
        assert "as their configurations say: the weights are the same" in fault.text
    wrong = made(tmp_path / "c", tensors, "gptq_v2")
    high = made(tmp_path / "d", tensors | {n: plus_one(tensors[n], carried=False) for n in zeros}, "gptq")  # fmt: skip
    (fault,) = intarsia.verify(wrong, high).faults
    assert "and their configurations do not say so" in fault.text


def test_zero_points_that_differ_otherwise_are_not_explained_so(tmp_path: Path) -> None:
    tensors = SCHEMES["gptq"][0](llama()[0])
    a = made(tmp_path / "a", tensors)
    other = plus_one(tensors[ZEROS], carried=False)
    other[0, 0] ^= 0x70
    (found,) = intarsia.verify(a, made(tmp_path / "b", tensors | {ZEROS: other})).different
    assert found.kind == "unexplained"
