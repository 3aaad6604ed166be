"""Digests that were taken without a configuration or of another section hold for a reader who gives one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import intarsia

SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32, "num_experts_per_tok": 1,
}  # fmt: skip
FUSED = "model.layers.0.mlp.experts.gate_up_proj"


@pytest.mark.parametrize("experts", [4, 1])
@pytest.mark.parametrize("changed", [FUSED, "model.norm.weight"])
def test_a_configuration_that_divides_tensors_is_given_later(
    tmp_path: Path, changed: str, experts: int
) -> None:
    """One expert has the elements of the tensor that holds all of them, in another shape."""
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, num_experts=experts))
    config = model.config.to_dict()
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    out = tmp_path / "out"
    intarsia.convert(tmp_path / "model.safetensors", out, to="hf")
    for path in (out, out / "model.safetensors"):
        assert intarsia.verify(path)
        assert intarsia.verify(path, config=config), intarsia.verify(path, config=config)
    intarsia.convert(out, tmp_path / "megatron", to="torch_dist", config=config)
    assert intarsia.verify(out, tmp_path / "megatron")
    held = load_file(out / "model.safetensors")
    held[changed] = held[changed] * 1.5
    save_file(held, out / "model.safetensors")
    for given in (None, config):
        for path in (out, out / "model.safetensors"):
            (fault,) = intarsia.verify(path, config=given).faults
            assert (fault.kind, fault.tensors) == ("digest-differs", (changed,))
