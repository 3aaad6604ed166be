"""Zero rows at the end of a vocabulary that Megatron padded: padding, or a rank's rows that were lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import intarsia
from tests.checkpoints import normal_tensor, qwen3_config, write_hf
from tests.format.megatron.fsdp_dtensor.test_fsdp_dtensor import weights
from tests.parity.megatron_writing import write_torch_dist

CONFIG = qwen3_config(hidden_size=16, num_hidden_layers=2, intermediate_size=24, head_dim=4)
TOKENS, ROWS = 99, 112


@pytest.mark.parametrize(
    ("first", "kinds"), [(TOKENS, []), (80, []), (ROWS // 2, ["zero-block"]), (84, ["zero-block"])]
)
def test_a_rank_s_tokens_are_missed_though_padding_follows_them(
    first: int, kinds: list[str], tmp_path: Path
) -> None:
    config = CONFIG | {"vocab_size": TOKENS, "tie_word_embeddings": True}
    model = weights(config)
    model["model.embed_tokens.weight"] = normal_tensor((TOKENS, 16), torch.bfloat16)
    model["model.embed_tokens.weight"][first:] = 0
    source = write_hf(tmp_path / "hf", model, config)
    write_torch_dist(source, tmp_path / "td", pad_to=ROWS)
    assert [fault.kind for fault in intarsia.verify(tmp_path / "td").faults] == kinds
