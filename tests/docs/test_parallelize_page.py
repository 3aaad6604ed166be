"""The page on parallelize shows code that runs; on one rank, where every dimension has size 1."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from transformers import Qwen3MoeConfig

from tests.docs.test_snippets import ROOT, blocks


def test_the_code_of_the_page_runs(tmp_path: Path) -> None:
    config = Qwen3MoeConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, moe_intermediate_size=8, num_experts=4,
        num_experts_per_tok=2,
    )  # fmt: skip
    batch = torch.arange(24).reshape(2, 12)
    (code,) = blocks(ROOT / "docs" / "how-to" / "parallelize.md", "python")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        scope = {"device": "cpu", "dp": 1, "ep": 1, "config": config, "batch": batch}
        exec(compile(code, "parallelize.md", "exec"), scope)
    finally:
        dist.destroy_process_group()
    assert scope["mine"].equal(batch)  # type: ignore[attr-defined]
