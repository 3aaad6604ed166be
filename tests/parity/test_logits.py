"""A model that went through other formats and came back says what it said before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import intarsia

FIXTURES = Path(__file__).parents[2] / "../shared/fixtures/hf"
pytestmark = pytest.mark.skipif(
    not FIXTURES.is_dir(), reason="the folder of checkpoints written by real frameworks is absent"
)


@pytest.mark.parametrize(
    "folder", sorted(FIXTURES.iterdir()) if FIXTURES.is_dir() else [], ids=lambda p: p.name
)
def test_logits_are_those_of_the_reference(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    intarsia.convert(folder, tmp_path / "megatron", to="torch_dist", mesh="tp=2,ep=2,pp=2")
    intarsia.convert(tmp_path / "megatron", tmp_path / "dcp", to="dcp", mesh="fsdp=3")
    intarsia.convert(tmp_path / "dcp", tmp_path / "back", to="hf")
    reference = load_file(folder / "reference_logits.safetensors")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        logits = model(reference["input_ids"]).logits
    torch.testing.assert_close(logits, reference["logits"], atol=1e-5, rtol=1e-5)
