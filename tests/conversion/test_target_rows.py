"""Which tensors a conversion writes: those of the family's table, and those that it does not know."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

import intarsia


@pytest.fixture
def without_shared_experts(tmp_path: Path) -> Path:
    """A model for which Transformers makes matrices of no elements, which the table does not name."""
    config = DeepseekV3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, n_shared_experts=0, n_routed_experts=4,
        num_experts_per_tok=2, n_group=1, topk_group=1, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=8,
        v_head_dim=8, qk_nope_head_dim=8, first_k_dense_replace=1,
    )  # fmt: skip
    DeepseekV3ForCausalLM(config).save_pretrained(tmp_path / "hub")
    return tmp_path / "hub"


def test_tensors_of_no_elements_that_a_table_does_not_know_are_carried(
    without_shared_experts: Path, tmp_path: Path
) -> None:
    intarsia.convert(without_shared_experts, tmp_path / "module", to="hf", dialect="hf-module")
    found = load_file(tmp_path / "module" / "model.safetensors")
    model = DeepseekV3ForCausalLM.from_pretrained(without_shared_experts)
    assert {n: x.shape for n, x in found.items()} == {
        n: x.shape for n, x in model.state_dict().items()
    }
    assert intarsia.verify(without_shared_experts, tmp_path / "module")


def test_they_are_refused_where_a_format_has_no_place_for_them(
    without_shared_experts: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        intarsia.IntarsiaError, match=r"3 tensors of .* are not in the megatron table"
    ):
        intarsia.convert(without_shared_experts, tmp_path / "there", to="torch_dist")
    assert not (tmp_path / "there").exists()
