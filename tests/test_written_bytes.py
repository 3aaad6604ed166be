"""What is written stays the same, byte by byte, while the code around it changes."""

from __future__ import annotations

import pytest

from tests.written_bytes import TARGETS, recorded, sources, written

QUICK = {
    ("hf/qwen3_next", "dcp tp=2,fsdp=3"),
    ("hf/gpt_oss", "hf as modules name it"),
    ("hf/qwen3_moe_sharded", "hf in small files, bf16"),
    ("megatron/td_gdn_tp2", "hf"),
    ("megatron/td_moe_tp2pp2ep2", "fsdp_dtensor tp=2,ep=2,fsdp=2"),
    ("megatron/fd_moe_ep2_fsdp2", "torch_dist tp=2,pp=2,ep=2"),
    ("megatron/fd_dense_tp2_fsdp2", "dcp ep=2,fsdp=2,replicate=2"),
}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        pytest.param(s, t, marks=() if (s, t) in QUICK else pytest.mark.slow)
        for s in sources()
        for t in TARGETS
    ],
)
def test_a_folder_is_written_with_the_bytes_that_are_recorded(source: str, target: str) -> None:
    assert written(source, target) == recorded()[source][target]
