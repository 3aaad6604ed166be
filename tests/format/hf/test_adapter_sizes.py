"""PEFT's own adapters are sound, whatever their kind, and one whose configuration gives other sizes is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import intarsia
from intarsia.errors import FamilyError

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128}  # fmt: skip
TWO = {"target_modules": ["q_proj", "down_proj"]}

KINDS: list[tuple[Callable[..., Any], dict[str, Any], dict[str, Any], str]] = [
    (peft.AdaLoraConfig, {"init_r": 6, "total_step": 10} | TWO, {"init_r": 5}, "has shape [6, 96], the configuration gives [5, …]"),
    (peft.OFTConfig, {"oft_block_size": 8} | TWO, {"oft_block_size": 4}, "is 12 blocks of 8, and the configuration says oft_block_size 4"),
    (peft.OFTConfig, {"oft_block_size": 40} | TWO, {"block_share": True}, "is several blocks, and block_share is configured"),
    (peft.OFTConfig, {"r": 4, "oft_block_size": 0} | TWO, {"r": 8}, "is 4 blocks of 24, and the configuration says r 8"),
    (peft.OFTConfig, {"oft_block_size": 8, "block_share": True} | TWO, {}, ""),
    (peft.VeraConfig, {"r": 16, "target_modules": ["q_proj", "o_proj"]}, {"r": 8}, "has shape [16], the configuration gives [8]"),
    (peft.PromptTuningConfig, {"num_virtual_tokens": 7}, {"num_virtual_tokens": 8}, "has shape [7, 64], the configuration gives [8, 64]"),
    (peft.PrefixTuningConfig, {"num_virtual_tokens": 7}, {"num_layers": 3}, "has shape [7, 128], the configuration gives [7, 192]"),
    (peft.PromptEncoderConfig, {"num_virtual_tokens": 7, "encoder_hidden_size": 24}, {"token_dim": 32}, "has shape [7, 64], the configuration gives [7, 32]"),
    (peft.LoHaConfig, {"r": 6} | TWO, {"r": 5}, "has shape [64, 6], the configuration gives […, 5]"),
    (peft.LoHaConfig, {"r": 6, "rank_pattern": {"q_proj": 3}} | TWO, {}, ""),
    (peft.LoKrConfig, {"r": 2, "decompose_both": True, "decompose_factor": 8} | TWO, {"r": 3}, "has shape [8, 2], the configuration gives […, 3]"),
    (peft.HRAConfig, {"r": 4} | TWO, {"r": 2}, "has shape [96, 4], the configuration gives […, 2]"),
    (peft.FourierFTConfig, {"n_frequency": 50} | TWO, {"n_frequency": 60}, "has shape [50], the configuration gives [60]"),
    (peft.VBLoRAConfig, {"num_vectors": 16, "vector_length": 8, "topk": 2, "target_modules": ["q_proj"]}, {"vector_length": 4}, "has shape [16, 8], the configuration gives [16, 4]"),
    (peft.TrainableTokensConfig, {"token_indices": [1, 5, 9]}, {"token_indices": [1]}, "has shape [3, 64], the configuration gives [1, …]"),
    (peft.LoraConfig, {"trainable_token_indices": {"embed_tokens": [1, 5]}} | TWO, {"trainable_token_indices": {"embed_tokens": [1]}}, "has shape [2, 64], the configuration gives [1, …]"),
]  # fmt: skip


@pytest.fixture(scope="module")
def config() -> LlamaConfig:
    return LlamaConfig(**SIZES)


@pytest.mark.parametrize(("kind", "said", "other", "text"), KINDS)
@pytest.mark.one_in(3)
def test_an_adapter_has_the_sizes_of_its_configuration(
    tmp_path: Path, config: LlamaConfig, kind: Any, said: Any, other: Any, text: str
) -> None:
    model = peft.get_peft_model(LlamaForCausalLM(config), kind(task_type="CAUSAL_LM", **said))
    for x in model.parameters():
        if x.requires_grad:
            torch.nn.init.normal_(x, std=0.02)
    model.save_pretrained(tmp_path / "a")
    assert intarsia.verify(tmp_path / "a")
    declared = tmp_path / "a" / "adapter_config.json"
    declared.write_text(json.dumps(json.loads(declared.read_text()) | other))
    faults = intarsia.verify(tmp_path / "a").faults
    assert [fault.kind for fault in faults][:1] == ["config-contradicts"] * bool(text)
    assert any(text in fault.text for fault in faults) or not text
    if text:
        with pytest.raises(FamilyError, match="the configuration"):
            intarsia.convert(tmp_path / "a", tmp_path / "b", to="dcp")


def test_ranks_that_adalora_gave_up_are_those_of_its_pattern(
    tmp_path: Path, config: LlamaConfig
) -> None:
    said = peft.AdaLoraConfig(init_r=6, total_step=10, task_type="CAUSAL_LM", **TWO)
    model = peft.get_peft_model(LlamaForCausalLM(config), said)
    names = [n for n, _ in model.named_parameters() if "lora_E" in n]
    pattern = {n.removeprefix("base_model.model."): [k < i for k in range(6)] for i, n in enumerate(names)}  # fmt: skip
    model.peft_config["default"].rank_pattern = pattern
    model.save_pretrained(tmp_path / "a")
    assert intarsia.verify(tmp_path / "a"), "the first module has no rank left"
    declared = tmp_path / "a" / "adapter_config.json"
    text = json.loads(declared.read_text())
    text["rank_pattern"]["model.layers.1.mlp.down_proj.lora_E"] = [True] * 6
    declared.write_text(json.dumps(text))
    faults = intarsia.verify(tmp_path / "a").faults
    assert {name.rpartition(".")[2] for x in faults for name in x.tensors} == {"lora_A", "lora_B", "lora_E"}  # fmt: skip
    assert all("layers.1.mlp.down_proj" in name for fault in faults for name in fault.tensors)
