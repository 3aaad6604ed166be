"""Small model configurations with no two sizes alike, so that a wrong axis shows."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

LEFT_OUT = "left out"

DENSE: Config = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 36,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS: Config = {
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 14,
}
GDN: Config = {
    "num_hidden_layers": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
}
ROUTED: Config = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "n_shared_experts": 2,
    "moe_intermediate_size": 14,
    "first_k_dense_replace": 1,
}
LATENT: Config = {
    "kv_lora_rank": 16,
    "q_lora_rank": 18,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 7,
    "num_key_value_heads": 4,
}
VISION: Config = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_heads": 2,
    "out_hidden_size": 24,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [],
}
SIGLIP: Config = {
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def of(model_type: str, *parts: Config, **more: Any) -> Config:
    out: Config = {"model_type": model_type}
    for part in (*parts, more):
        out |= part
    return {name: value for name, value in out.items() if value != LEFT_OUT}


def wrapped(model_type: str, vision: Config, text: Config, **more: Any) -> Config:
    return {"model_type": model_type, "text_config": text, "vision_config": vision, **more}


CASES: dict[str, Config] = {
    "llama": of("llama", DENSE),
    "llama, biases": of("llama", DENSE, attention_bias=True, mlp_bias=True),
    "llama, tied, no groups": of("llama", DENSE, tie_word_embeddings=True, num_key_value_heads=4),
    "llama, head_dim left out": of("llama", DENSE, head_dim=LEFT_OUT),
    "mistral": of("mistral", DENSE),
    "qwen2": of("qwen2", DENSE, head_dim=LEFT_OUT),
    "qwen2, tied": of("qwen2", DENSE, head_dim=LEFT_OUT, tie_word_embeddings=True),
    "qwen2_moe": of(
        "qwen2_moe", DENSE, EXPERTS, head_dim=LEFT_OUT, shared_expert_intermediate_size=22
    ),
    "qwen2_moe, some dense": of(
        "qwen2_moe", DENSE, EXPERTS, head_dim=LEFT_OUT, shared_expert_intermediate_size=22,
        qkv_bias=False, decoder_sparse_step=2,
    ),
    "qwen3": of("qwen3", DENSE),
    "qwen3, biases, tied": of("qwen3", DENSE, attention_bias=True, tie_word_embeddings=True),
    "qwen3_moe": of("qwen3_moe", DENSE, EXPERTS),
    "qwen3_moe, some dense": of("qwen3_moe", DENSE, EXPERTS, mlp_only_layers=[1]),
    "qwen3_moe, no experts": of("qwen3_moe", DENSE, EXPERTS, num_experts=0),
    "qwen3_next": of("qwen3_next", DENSE, EXPERTS, GDN, shared_expert_intermediate_size=22),
    "qwen3_next, layer_types": of(
        "qwen3_next", DENSE, EXPERTS, GDN, shared_expert_intermediate_size=22,
        num_hidden_layers=2, layer_types=["full_attention", "linear_attention"],
        attention_bias=True, mlp_only_layers=[1],
    ),
    "qwen3_5_text": of("qwen3_5_text", DENSE, GDN),
    "qwen3_5_moe_text": of(
        "qwen3_5_moe_text", DENSE, EXPERTS, GDN, shared_expert_intermediate_size=22
    ),
    "qwen3_5": wrapped("qwen3_5", VISION, of("qwen3_5_text", DENSE, GDN)),
    "qwen3_5_moe": wrapped(
        "qwen3_5_moe", VISION,
        of("qwen3_5_moe_text", DENSE, EXPERTS, GDN, shared_expert_intermediate_size=22),
    ),
    "deepseek_v3": of("deepseek_v3", DENSE, ROUTED, LATENT, head_dim=4),
    "deepseek_v3, no query rank, biases": of(
        "deepseek_v3", DENSE, ROUTED, LATENT, head_dim=4, q_lora_rank=None, attention_bias=True,
        num_nextn_predict_layers=0,
    ),
    "mixtral": of("mixtral", DENSE, num_local_experts=3, num_experts_per_tok=2),
    "gpt_oss": of("gpt_oss", DENSE, num_local_experts=3, num_experts_per_tok=2),
    "gemma3_text": of("gemma3_text", DENSE),
    "gemma3": wrapped("gemma3", SIGLIP, of("gemma3_text", DENSE), mm_tokens_per_image=4),
    "glm4_moe": of("glm4_moe", DENSE, ROUTED, attention_bias=True, use_qk_norm=True),
    "glm4_moe, no norms": of("glm4_moe", DENSE, ROUTED, n_shared_experts=1),
    "cwm": of("cwm", DENSE),
    "ernie4_5": of("ernie4_5", DENSE, use_bias=True),
    "granite": of("granite", DENSE),
    "ministral": of("ministral", DENSE),
    "ministral3": of("ministral3", DENSE),
    "mistral3": wrapped(
        "mistral3", {**SIGLIP, "model_type": "siglip_vision_model"}, of("mistral", DENSE)
    ),
    "seed_oss": of("seed_oss", DENSE),
    "seed_oss, all biases": of("seed_oss", DENSE, attention_out_bias=True, mlp_bias=True),
    "smollm3": of("smollm3", DENSE),
    "gemma": of("gemma", DENSE),
    "gemma2": of("gemma2", DENSE),
    "qwen2_vl": wrapped(
        "qwen2_vl", {**VISION, "embed_dim": 16}, of("qwen2_vl_text", DENSE, head_dim=LEFT_OUT),
    ),
    "qwen2_5_vl": wrapped(
        "qwen2_5_vl", VISION, of("qwen2_5_vl_text", DENSE, head_dim=LEFT_OUT),
    ),
    "qwen3_vl": wrapped("qwen3_vl", VISION, of("qwen3_vl_text", DENSE)),
    "deepseek_v2": of("deepseek_v2", DENSE, ROUTED, LATENT, head_dim=4),
    "glm4_moe_lite": of("glm4_moe_lite", DENSE, ROUTED, LATENT, head_dim=4),
    "olmoe": of("olmoe", DENSE, num_experts=3, num_experts_per_tok=2, head_dim=LEFT_OUT),
    "phi3": of("phi3", DENSE),
}  # fmt: skip
