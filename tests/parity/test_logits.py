"""A model that went through other formats and came back says what it said before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import intarsia
from tests.fixtures import FIXTURES

DENSE = ("llama", "qwen3")


@pytest.mark.parametrize("folder", sorted((FIXTURES / "hf").iterdir()), ids=lambda p: p.name)
@pytest.mark.one_in(4)
def test_logits_are_those_of_the_reference(folder: Path, tmp_path: Path) -> None:
    mesh = "tp=2,pp=2" if folder.name in DENSE else "tp=2,ep=2,pp=2"
    intarsia.convert(folder, tmp_path / "megatron", to="torch_dist", mesh=mesh)
    intarsia.convert(tmp_path / "megatron", tmp_path / "dcp", to="dcp", mesh="fsdp=3")
    intarsia.convert(tmp_path / "dcp", tmp_path / "back", to="hf")
    reference = load_file(folder / "reference_logits.safetensors")
    ids = reference["input_ids"]
    logits = logits_of(tmp_path / "back", ids)
    assert torch.equal(logits, logits_of(folder, ids))
    # The reference was computed on another machine, whose sums of products round differently.
    torch.testing.assert_close(logits, reference["logits"], atol=1e-3, rtol=1e-3)


def logits_of(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    """What Transformers computes from a checkpoint, on this machine."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        found: torch.Tensor = model.eval()(ids).logits
    return found
