"""Real Megatron-core, built from the arguments that we write and nothing else, computes what Transformers does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import intarsia
from tests.parity.test_megatron_core_loads import iteration, launch

pytestmark = [pytest.mark.megatron, pytest.mark.slow]

SIZES = {
    "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4,
    "intermediate_size": 48, "vocab_size": 99, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": False}
GROUPED = ROUTED | {
    "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4,
    "first_k_dense_replace": 2, "routed_scaling_factor": 1.7, "norm_topk_prob": True,
}  # fmt: skip
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 77.0,
}
IN_TURN = ["full_attention", "sliding_attention"] * 2

CASES: dict[str, dict[str, Any]] = {
    "llama": {"head_dim": 12, "rms_norm_eps": 0.05, "rope_theta": 77.0, "layer_types": IN_TURN, "sliding_window": 5},
    "llama, yarn": {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.2, "truncate": False}},
    "mistral": {"sliding_window": 5},
    "mistral, a ministral": {"sliding_window": 5, "layer_types": IN_TURN},
    "ministral": {"head_dim": 8, "sliding_window": 5, "layer_types": IN_TURN},
    "cwm": {"sliding_window": 5, "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}},
    "ernie4_5": {"head_dim": 8, "tie_word_embeddings": False},
    "smollm3": {"use_sliding_window": True, "sliding_window": 5, "no_rope_layers": [1, 0, 1, 0]},
    "phi3": {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 77.0}},
    "qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2},
    "qwen3": {"head_dim": 8, "rope_parameters": YARN},
    "qwen2_moe": ROUTED | {
        "num_experts": 8, "shared_expert_intermediate_size": 40, "use_sliding_window": True, "sliding_window": 5,
        "max_window_layers": 3,
    },
    "qwen3_moe": ROUTED | {
        "num_experts": 8, "head_dim": 8, "mlp_only_layers": [1], "use_sliding_window": True, "sliding_window": 5,
        "max_window_layers": 2,
    },
    "mixtral": {
        "num_local_experts": 8, "head_dim": 8, "sliding_window": 5, "layer_types": IN_TURN, "norm_topk_prob": False,
    },
    "glm4_moe": GROUPED | {"head_dim": 8, "use_qk_norm": True},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 5, "swiglu_limit": 1.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[torch.Tensor, Path]]:
    """The logits of each case in Transformers, and where those of Megatron are."""
    root = tmp_path_factory.mktemp("cases")
    ids = torch.randint(0, 99, (2, 24), generator=torch.manual_seed(3))
    torch.save(ids, root / "ids.pt")
    found: dict[str, tuple[torch.Tensor, Path]] = {}
    for case, changes in CASES.items():
        config = AutoConfig.for_model(case.partition(",")[0], **SIZES | changes)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(std=0.25)
        model.save_pretrained(root / case / "hf")
        again = AutoModelForCausalLM.from_pretrained(
            root / case / "hf", attn_implementation="eager"
        )
        with torch.no_grad():
            want = again.eval()(ids).logits
        target = root / case / "td"
        intarsia.convert(root / case / "hf", target, to="torch_dist", megatron_spec="local")
        found[case] = (want, iteration(target))
    launch(
        "tests.parity.megatron_by_arguments", 1, root / "ids.pt", *(p for _, p in found.values())
    )
    return found


@pytest.mark.parametrize("case", CASES)
def test_arguments_alone_make_the_model_of_the_hub(case: str, computed: Any) -> None:
    want, checkpoint = computed[case]
    found = torch.load(checkpoint.parent / "logits.pt")
    torch.testing.assert_close(found, want, atol=1e-5 * float(want.abs().max()), rtol=0)
