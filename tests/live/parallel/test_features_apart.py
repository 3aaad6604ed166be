"""A plan may cut the layers of a module only where each feature between them is computed from itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from intarsia.errors import UsageError
from intarsia.live.parallel.features_apart import check_features_apart
from intarsia.live.parallel.tensor_parallel import layers_of
from tests.versions import since

MLP = "model.layers.*.mlp"


def made(family: str, device: str = "cpu", **changes: Any) -> PreTrainedModel:
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    sizes |= {"num_hidden_layers": 2, "vocab_size": 100, "intermediate_size": 48, "pad_token_id": 0}
    with torch.device(device):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes | changes))


def sparse(*shares: float, device: str = "cpu") -> PreTrainedModel:
    """A Gemma 3n, which keeps a share of its features: those far above the mean of all."""
    own = {"activation_sparsity_pattern": list(shares), "num_kv_shared_layers": 0}
    return made("gemma3n_text", device, **own, layer_types=["full_attention"] * 2,
                hidden_size_per_layer_input=8, vocab_size_per_layer_input=100, laurel_rank=4)  # fmt: skip


def check(model: nn.Module, size: int = 2) -> None:
    check_features_apart(model, layers_of(model, size), size)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_mean_over_the_features_is_refused_with_the_module_that_takes_it(device: str) -> None:
    with pytest.raises(
        UsageError, match=r"model\.layers\.1\.mlp \(Gemma3nTextMLP\) computes across"
    ):
        check(sparse(0.0, 0.9, device=device))
    check(sparse(0.0, 0.0, device=device))


def test_a_module_that_the_plan_leaves_out_computes_as_it_likes() -> None:
    model = sparse(0.9, 0.9)
    model.tp_plan = {k: style for k, style in model.tp_plan.items() if ".mlp." not in k}
    check(model)


def test_halves_of_a_fused_projection_are_refused_where_the_plan_cuts_through_them() -> None:
    model = made("phi3")
    check(model)
    model.tp_plan = dict(model.tp_plan) | {
        f"{MLP}.gate_up_proj": "colwise", f"{MLP}.down_proj": "rowwise",
    }  # fmt: skip
    with pytest.raises(UsageError, match=r"Phi3MLP\) computes across"):
        check(model)


NEMOTRON = pytest.param("nemotron", marks=since("transformers", "5.22"))


@pytest.mark.parametrize("family", ["llama", "apertus", NEMOTRON, "starcoder2", "qwen2_moe"])
def test_what_is_computed_feature_by_feature_is_not_refused(family: str) -> None:
    check(made(family))
    check(made(family, device="meta"), 1)


def test_a_module_is_left_as_it_was() -> None:
    model = made("starcoder2", residual_dropout=0.5).train()
    model.model.layers[0].mlp.eval()
    held = [(name, m.training, vars(m).get("forward")) for name, m in model.named_modules()]
    torch.manual_seed(1)
    check(model)
    drawn = torch.rand(1)
    assert [(n, m.training, vars(m).get("forward")) for n, m in model.named_modules()] == held
    torch.manual_seed(1)
    assert torch.rand(1) == drawn
