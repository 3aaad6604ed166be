"""A small random mixture-of-experts checkpoint, as Transformers would save it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from intarsia.family import table_for

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


def write_model(folder: Path, seed: int) -> None:
    """Write the model to a new folder."""
    random, table = np.random.default_rng(seed), table_for(CONFIG)
    assert table is not None, "the demonstration is of a family that is known"
    folder.mkdir(parents=True)
    tensors = {
        name: random.standard_normal(shape, np.float32).astype(np.float16)
        for name, shape in table.logical.items()
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
