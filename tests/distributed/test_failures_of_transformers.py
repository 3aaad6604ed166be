"""Sharded loads that Transformers gets wrong without a word, or never ends; ours of the same files.

Each model is laid out by Transformers itself (`DistributedConfig`), once filled by its own loader
and once, still on `meta`, by `intarsia.load`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from transformers import DistributedConfig

import intarsia
from tests.distributed.ranks import on_ranks, outcomes
from tests.versions import newer_than_pinned

TINY = {"vocab_size": 48, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {
        "num_hidden_layers": 1, "num_key_value_heads": 2, "head_dim": 6, "num_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 12,
    },
    "kimi_linear": {
        "num_hidden_layers": 2, "num_key_value_heads": 4, "layer_types": ["linear_attention", "full_attention"],
        "mlp_layer_types": ["dense", "sparse"], "num_local_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 12, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6,
        "v_head_dim": 6, "linear_head_dim": 6, "linear_num_heads": 4,
    },
    "olmo_hybrid": {
        "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
        "linear_value_head_dim": 10,
    },
    "hrm_text": {"num_hidden_layers": 1, "head_dim": 6},
}  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """A checkpoint as one process saved it, and the file of its module's tensors."""

    folder: Path
    truth: Path


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stored]:
    """Tiny models, every parameter random, saved by `save_pretrained` of one process."""
    from transformers import AutoConfig, AutoModelForCausalLM

    found = {}
    for number, (kind, sizes) in enumerate(CONFIGS.items()):
        torch.manual_seed(number)
        config = AutoConfig.for_model(kind, **TINY, **sizes)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for param in model.parameters():
                param.normal_()
        folder = tmp_path_factory.mktemp(kind)
        model.save_pretrained(folder)
        save_file(
            {n: x.contiguous().clone() for n, x in model.state_dict().items()},
            folder / "module.truth",
        )
        found[kind] = Stored(folder, folder / "module.truth")
    return found


def by_transformers(folder: Path, layout: dict[str, int]) -> Any:
    """What `from_pretrained` makes of a checkpoint on a mesh."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, distributed_config=DistributedConfig(**layout)
    )


def by_intarsia(folder: Path, layout: dict[str, int]) -> Any:
    """The same model, laid out on `meta` by Transformers and filled by us."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder), dtype=torch.float32
        )
    asked, _, mesh = type(model).prepare_distribute_model(DistributedConfig(**layout))
    model = type(model).maybe_distribute_model(model, asked, mesh)
    intarsia.load(folder, into=model)
    return model


def wrong_in(model: Any, truth: Path) -> list[str]:
    """The tensors of a model that, made whole again, are not the saved ones; collective."""
    expected = load_file(truth)
    state = model.state_dict()
    assert state.keys() == expected.keys()
    wrong = []
    for name, x in state.items():
        whole = x.full_tensor() if hasattr(x, "full_tensor") else x
        if not torch.equal(whole, expected[name]):
            wrong.append(name)
    return wrong


def both(stored: Stored, layout: dict[str, int]) -> tuple[list[str], list[str]]:
    theirs = wrong_in(by_transformers(stored.folder, layout), stored.truth)
    return theirs, wrong_in(by_intarsia(stored.folder, layout), stored.truth)


REORDERED = {
    ("kimi_linear", "fsdp_size"): {"model.layers.0.self_attn.conv1d.weight"},
    ("olmo_hybrid", "fsdp_size"): {"model.layers.0.linear_attn.conv1d.weight"},
    ("hrm_text", "fsdp_size"): {
        f"model.{stack}_module.layers.0.{name}_proj.weight"
        for stack in "HL"
        for name in (*(f"self_attn.{x}" for x in ("gate", "q", "k", "v")), "mlp.gate", "mlp.up")
    },
}
REORDERED["hrm_text", "tp_size"] = REORDERED["hrm_text", "fsdp_size"]


@pytest.mark.parametrize(("kind", "axis"), REORDERED)
@pytest.mark.one_in(4)
def test_rows_that_transformers_reorders_in_silence_stay_in_order(
    stored: dict[str, Stored], kind: str, axis: str
) -> None:
    for theirs, ours in on_ranks(2, both, stored[kind], {axis: 2}):
        assert set(theirs) == REORDERED[kind, axis]
        assert ours == []


def ram_efficient(stored: Stored, layout: dict[str, int]) -> tuple[list[str], list[str]]:
    os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}
    return both(stored, layout)


@pytest.mark.parametrize("layout", [{"fsdp_size": 2}, {"fsdp_size": 2, "ep_size": 2}])
@pytest.mark.one_in(2)
def test_the_ram_efficient_switch_zeroes_no_shard(
    stored: dict[str, Stored], layout: dict[str, int]
) -> None:
    if unknown := layout.keys() - signature(DistributedConfig).parameters.keys():
        pytest.skip(f"the installed Transformers has no {', '.join(unknown)}")
    for theirs, ours in on_ranks(2, ram_efficient, stored["qwen3_moe"], layout):
        assert len(theirs) > 10 or newer_than_pinned("transformers")
        assert ours == []


EXPERTS_OVER_FIVE = {"fsdp_size": 5}
"""Eight experts over five ranks: two on each of four, and none on the last."""


def without_an_expert(stored: Stored) -> tuple[list[str], int]:
    model = by_intarsia(stored.folder, EXPERTS_OVER_FIVE)
    held = model.model.layers[0].mlp.experts.down_proj.to_local().shape[0]
    return wrong_in(model, stored.truth), held


def test_a_rank_without_an_expert_loads_like_the_others(stored: dict[str, Stored]) -> None:
    found = on_ranks(5, without_an_expert, stored["qwen3_moe"])
    assert found == [([], 2)] * 4 + [([], 0)]


def without_an_expert_in_transformers(stored: Stored) -> None:
    by_transformers(stored.folder, EXPERTS_OVER_FIVE)
    dist.barrier()


def test_transformers_fails_where_a_rank_has_no_expert(stored: dict[str, Stored]) -> None:
    found = outcomes(5, without_an_expert_in_transformers, stored["qwen3_moe"], seconds=40)
    assert not any(good for good, _ in found)
    assert "conversion" in found[4][1]
    assert not any("conversion" in said for _, said in found[:4])  # these wait for the last
