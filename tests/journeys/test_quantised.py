"""Quantised folders of Transformers, through a sharded checkpoint and back into Transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import intarsia
from tests.checkpoints import assert_same, read_hf, write_hf
from tests.quantised.schemes import fp8_of, mxfp4_of

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip


def deepseek() -> PreTrainedModel:
    config = DeepseekV3Config(
        **SIZES | {"num_key_value_heads": 4}, moe_intermediate_size=48, n_routed_experts=4, n_shared_experts=1,
        num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1, kv_lora_rank=32, q_lora_rank=48,
        qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16,
    )  # fmt: skip
    return DeepseekV3ForCausalLM(config)


def qwen3_moe() -> PreTrainedModel:
    config = Qwen3MoeConfig(**SIZES, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2)
    return Qwen3MoeForCausalLM(config)


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def gpt_oss() -> PreTrainedModel:
    sizes = SIZES | {"intermediate_size": 64}
    config = GptOssConfig(**sizes, num_local_experts=4, num_experts_per_tok=2, sliding_window=16)
    return GptOssForCausalLM(config)


def saved(folder: Path, model: PreTrainedModel) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and the configuration that Transformers saves of a model."""
    model.to(torch.bfloat16).save_pretrained(folder)
    return read_hf(folder), json.loads((folder / "config.json").read_text())


def fp8_folder(tmp: Path, model: PreTrainedModel, block: list[int] | None) -> Path:
    """The projections in fp8, but for those of the first layer, which the configuration excludes."""
    tensors, config = saved(tmp / "plain", model)
    excluded = "model.layers.0.self_attn.o_proj"
    found = dict(tensors)
    for name, tensor in tensors.items():
        if "_proj" in name and tensor.dim() == 2 and not name.startswith(excluded):
            made = fp8_of(name, tensor, (block[0], block[1]) if block else (10**6, 10**6))
            found |= {n: t if block or t.dtype != torch.float32 else t.reshape(()) for n, t in made.items()}  # fmt: skip
    config["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": block,
        "modules_to_not_convert": [excluded, "lm_head"],
    }
    return write_hf(tmp / "fp8", found, config)


def mxfp4_folder(tmp: Path, model: PreTrainedModel) -> Path:
    """The experts in blocks, as gpt-oss is published."""
    tensors, config = saved(tmp / "plain", model)
    found = dict(tensors)
    for name in tensors:
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            found[f"{name}_blocks"], found[f"{name}_scales"] = mxfp4_of(found.pop(name))
    skip = [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": skip}
    return write_hf(tmp / "mxfp4", found, config)


def answers(path: Path) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The weights that Transformers makes of a folder, and what the model says."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        return weights, model.float()(torch.arange(12)[None] * 7 % 96).logits


def there_and_back(src: Path, tmp: Path) -> None:
    """Through DCP on a mesh and back: the same files' tensors, the same model, both steps sound."""
    intarsia.convert(src, tmp / "dcp", to="dcp", mesh="tp=2,fsdp=3")
    intarsia.convert(tmp / "dcp", tmp / "back", to="hf")
    assert_same(read_hf(tmp / "back"), read_hf(src))
    for path in (src, tmp / "dcp", tmp / "back"):
        report = intarsia.verify(path)
        assert report, str(report)
    assert intarsia.verify(tmp / "back", src)
    weights, logits = answers(src)
    same, said = answers(tmp / "back")
    assert_same(same, weights)
    assert torch.equal(said, logits)
    assert logits.abs().max() > 0


@pytest.mark.parametrize(
    ("model", "block"), [(deepseek, [16, 16]), (qwen3_moe, None), (llama, [8, 32])]
)
@pytest.mark.one_in(2)
def test_fp8_with_blocks_or_one_scale(tmp_path: Path, model: Any, block: list[int] | None) -> None:
    torch.manual_seed(0)
    there_and_back(fp8_folder(tmp_path, model(), block), tmp_path)


def test_the_experts_of_gpt_oss_in_mxfp4(tmp_path: Path) -> None:
    torch.manual_seed(0)
    there_and_back(mxfp4_folder(tmp_path, gpt_oss()), tmp_path)


def test_what_transformers_dequantises_is_an_ordinary_model(tmp_path: Path) -> None:
    """The next step that refusals name."""
    torch.manual_seed(0)
    src = fp8_folder(tmp_path, qwen3_moe(), [16, 16])
    with pytest.raises(intarsia.IntarsiaError, match="is quantised"):
        intarsia.convert(src, tmp_path / "megatron", to="torch_dist", mesh="tp=2")
    plain = AutoModelForCausalLM.from_pretrained(src, dtype=torch.bfloat16)
    plain.save_pretrained(tmp_path / "bf16", save_original_format=False)
    intarsia.convert(tmp_path / "bf16", tmp_path / "megatron", to="torch_dist", mesh="tp=2")
    assert intarsia.verify(tmp_path / "megatron", tmp_path / "bf16")
