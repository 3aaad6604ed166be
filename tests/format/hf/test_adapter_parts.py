"""An adapter that lost what PEFT saved of it is not sound: PEFT makes new ones, with a warning at most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

import intarsia
from intarsia.errors import FamilyError

SIZES = LlamaConfig(hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, vocab_size=32, tie_word_embeddings=False, pad_token_id=0)  # fmt: skip
TWO = {"target_modules": ["q_proj", "v_proj"]}
AT = "base_model.model.model.layers.1.self_attn.q_proj"


def saved(path: Path, config: Any, of: Any = LlamaForCausalLM) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = peft.get_peft_model(of(SIZES), config)
    for x in model.parameters():
        if x.requires_grad:
            torch.nn.init.normal_(x, std=0.02)
    model.save_pretrained(path)
    return load_file(path / "adapter_model.safetensors")


def without(path: Path, tensors: dict[str, torch.Tensor], lost: str) -> None:
    kept = {n: x for n, x in tensors.items() if lost not in n}
    assert len(kept) < len(tensors)
    save_file(kept, path / "adapter_model.safetensors", metadata={"format": "pt"})


SEVERAL = [
    (peft.AdaLoraConfig(total_step=10, **TWO), "lora_E"),
    (peft.BOFTConfig(boft_block_size=4, **TWO), "boft_s"),
    (peft.LoHaConfig(r=2, **TWO), "hada_w2_a"),
    (peft.LoKrConfig(r=2, **TWO), "lokr_w1"),
    (peft.LoKrConfig(r=2, rank_pattern={"layers.1.self_attn.q_proj": 1}, **TWO), "lokr_w2_b"),
    (peft.RandLoraConfig(r=2, **TWO), "randlora_gamma"),
    (peft.RoadConfig(group_size=8, **TWO), "road_theta"),
    (peft.ShiraConfig(r=2, **TWO), "shira_indices"),
    (peft.VeraConfig(r=2, **TWO), "vera_lambda_b"),
    (peft.LoraConfig(r=2, lora_bias=True, **TWO), "lora_B.bias"),
]


@pytest.mark.parametrize(("config", "part"), SEVERAL)
def test_a_module_without_one_of_its_tensors_is_refused(
    tmp_path: Path, config: Any, part: str
) -> None:
    tensors = saved(tmp_path, config)
    assert intarsia.verify(tmp_path)
    without(tmp_path, tensors, f"{AT}.{part}")
    with pytest.raises(FamilyError, match=rf"`{AT}` has .*no {part}"):
        intarsia.open(tmp_path)


ONE = [
    peft.IA3Config(feedforward_modules=[], **TWO),
    peft.FourierFTConfig(n_frequency=9, **TWO),
    peft.OFTConfig(oft_block_size=4, **TWO),
]


@pytest.mark.parametrize("config", ONE)
def test_a_module_of_which_nothing_is_stored_is_noted_where_most_layers_have_it(
    tmp_path: Path, config: Any
) -> None:
    tensors = saved(tmp_path, config)
    assert "most layers" not in "".join(intarsia.verify(tmp_path).notes)
    without(tmp_path, tensors, AT)
    (note,) = (x for x in intarsia.verify(tmp_path).notes if "most layers" in x)
    assert f"no tensors of {config.peft_type.value} for `{AT}`" in note


TOKENS = {"embed_tokens": [1, 2], "lm_head": [3]}


def test_what_is_saved_beside_the_modules_and_is_lost_is_told(tmp_path: Path) -> None:
    """PEFT says nothing of it."""
    for config in (
        peft.LoraConfig(r=2, modules_to_save=["lm_head", "norm"], **TWO),
        peft.IA3Config(feedforward_modules=[], modules_to_save=["lm_head", "norm"], **TWO),
    ):
        tensors = saved(tmp_path, config)
        assert "modules_to_save" not in "".join(intarsia.verify(tmp_path).notes)
        without(tmp_path, tensors, "lm_head")
        assert "stored of lm_head, named in modules_to" in "".join(intarsia.verify(tmp_path).notes)
        tensors = {n: x for n, x in tensors.items() if "norm" not in n}
        without(tmp_path, tensors, "lm_head")
        with pytest.raises(FamilyError, match=r"configured \(lm_head, norm\), and none is stored"):
            intarsia.open(tmp_path)
    tensors = saved(tmp_path, peft.LoraConfig(r=2, trainable_token_indices=TOKENS, **TWO))
    assert "tokens" not in "".join(intarsia.verify(tmp_path).notes)
    without(tmp_path, tensors, "lm_head")
    assert "of the trainable tokens of lm_head" in "".join(intarsia.verify(tmp_path).notes)
    without(tmp_path, tensors, "tokens_delta")
    with pytest.raises(FamilyError, match="configured, and no trainable_tokens_delta is stored"):
        intarsia.open(tmp_path)


@pytest.mark.parametrize("config", [peft.LoraConfig(r=2, task_type="SEQ_CLS", **TWO), peft.VeraConfig(r=2, task_type="SEQ_CLS", **TWO)])  # fmt: skip
def test_of_the_heads_that_peft_lists_one_is_enough(tmp_path: Path, config: Any) -> None:
    saved(tmp_path, config, LlamaForSequenceClassification)
    found = intarsia.verify(tmp_path)
    assert found
    assert "modules_to_save" not in "".join(found.notes)
