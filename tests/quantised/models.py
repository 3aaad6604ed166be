"""Plain weights of small models, in sizes that 8 and 16 divide, with their configurations."""

from __future__ import annotations

from typing import Any

import torch

from tests.checkpoints import llama_config, model, normal_tensor

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 2,
}

Tensors = dict[str, torch.Tensor]


def llama(**changes: Any) -> tuple[Tensors, dict[str, Any]]:
    """A dense model of a known family."""
    config = llama_config(**SIZES | changes)
    return model(config), config


def stranger() -> tuple[Tensors, dict[str, Any]]:
    """The same tensors under a `model_type` that has no table."""
    tensors, config = llama()
    return tensors, config | {"model_type": "never_heard_of", "architectures": ["X"]}


def mixtral(experts: int = 4) -> tuple[Tensors, dict[str, Any]]:
    """A model whose experts are stored one by one."""
    config = llama_config(
        **SIZES, model_type="mixtral", architectures=["MixtralForCausalLM"],
        num_local_experts=experts, num_experts_per_tok=2,
    )  # fmt: skip
    tensors = {n: t for n, t in model(config).items() if ".mlp." not in n}
    for layer in range(2):
        at = f"model.layers.{layer}.block_sparse_moe"
        tensors[f"{at}.gate.weight"] = normal_tensor((experts, 64), torch.bfloat16, layer)
        for e in range(experts):
            for k, (w, shape) in enumerate((("w1", (96, 64)), ("w2", (64, 96)), ("w3", (96, 64)))):
                seed = 7 + k + 10 * e + 100 * layer
                tensors[f"{at}.experts.{e}.{w}.weight"] = normal_tensor(shape, torch.bfloat16, seed)
    return tensors, config
