"""A small random mixture-of-experts checkpoint, as Transformers would save it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "dtype": "float16",
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 160,
    "moe_intermediate_size": 40,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "vocab_size": 331,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Every tensor of the model, by its name on the hub."""
    hidden, inner, width = 96, 40, 24
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (331, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (331, hidden),
    }
    for layer in range(4):
        at = f"model.layers.{layer}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{at}.{name}.weight"] = (hidden,)
        for name, heads in (("q", 6), ("k", 2), ("v", 2)):
            found[f"{at}.self_attn.{name}_proj.weight"] = (heads * width, hidden)
        found[f"{at}.self_attn.o_proj.weight"] = (hidden, 6 * width)
        for name in ("q_norm", "k_norm"):
            found[f"{at}.self_attn.{name}.weight"] = (width,)
        found[f"{at}.mlp.gate.weight"] = (8, hidden)
        for expert in range(8):
            for name in ("gate_proj", "up_proj"):
                found[f"{at}.mlp.experts.{expert}.{name}.weight"] = (inner, hidden)
            found[f"{at}.mlp.experts.{expert}.down_proj.weight"] = (hidden, inner)
    return found


def write_model(folder: Path, seed: int) -> None:
    """Write the model to a new folder."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    tensors = {
        name: random.standard_normal(shape, np.float32).astype(np.float16)
        for name, shape in shapes().items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
