"""A HybridModel of Megatron-core has the logits of the Transformers model that is made of its checkpoint."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import intarsia
from tests.parity.test_megatron_core_loads import launch, make

pytestmark = [
    pytest.mark.slow,
    pytest.mark.megatron,
    pytest.mark.skipif(
        find_spec("megatron.core.models.hybrid") is None,
        reason="the Megatron-core that is imported has no HybridModel",
    ),
]


@pytest.mark.parametrize(
    ("kind", "pattern", "changes", "tp", "pp"),
    [
        ("qwen3", "*-*-*-*-", {}, 1, 1),
        ("qwen3", "*-*-*-*-", {"tie_word_embeddings": True}, 2, 1),
        ("qwen3", "*-*-*-*-", {}, 1, 2),
        ("qwen3_moe", "*-*E*-*E", {"mlp_only_layers": [0, 2]}, 1, 1),
        ("qwen3_moe", "*E*E*E*E", {}, 2, 2),
    ],
)
def test_the_gpt_model_that_a_hybrid_model_computes(
    kind: str, pattern: str, changes: dict[str, Any], tp: int, pp: int, tmp_path: Path
) -> None:
    config = make(tmp_path / "like", kind, vocab_size=100, **changes).folder / "config.json"
    tokens, saved = tmp_path / "tokens", tmp_path / "hybrid"
    launch("tests.parity.megatron_hybrid", tp * pp, config, saved, tokens, pattern, tp, pp)
    intarsia.convert(saved, tmp_path / "hf", to="hf", config=config)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    ids, expected = torch.load(tokens)
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, expected, atol=1e-5, rtol=0)
