"""A stage of a Megatron model, of modules that stand in for TransformerEngine's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from tests.checkpoints import normal_tensor, qwen3_config, write_hf

SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "head_dim": 4, "vocab_size": 10}
CONFIG = qwen3_config(
    **SIZES, model_type="qwen3_moe", num_experts=4, moe_intermediate_size=6, num_experts_per_tok=2
)


class StandInGroup:
    """A process group in which this process is the last."""

    def __init__(self, size: int) -> None:
        self._size = size

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._size - 1


def stand_in(mode: str | None = None, tp: int = 1, **shapes: tuple[int, ...]) -> nn.Module:
    """A module of TransformerEngine's, cut as it says; `shapes` are those of its parameters here."""
    module: Any = nn.Module()
    module.parallel_mode, module._tp_group = mode, StandInGroup(tp)
    for name, shape in shapes.items():
        param = nn.Parameter(torch.full(shape, float("nan")))
        param.tensor_model_parallel, param.partition_dim = True, 0  # also where that is not true
        module.register_parameter(name, param)
    return module


def norm(size: int) -> nn.Module:
    module = nn.Module()
    module.weight = nn.Parameter(torch.full((size,), float("nan")))
    return module


def last_stage(tp: int, etp: int, centered: bool = False) -> nn.Module:
    """The second layer of two and the head, with the second half of four experts."""
    layer: Any = nn.Module()
    layer.layer_number = 2
    layer.self_attention = nn.Module()
    rows = (4 + 2 * 2) * 4 // tp
    layer.self_attention.linear_qkv = stand_in(
        "column", tp, weight=(rows, 8), layer_norm_weight=(8,)
    )
    layer.self_attention.linear_proj = stand_in("row", tp, weight=(8, 16 // tp))
    layer.pre_mlp_layernorm = norm(8)
    layer.mlp = nn.Module()
    layer.mlp.local_expert_indices = [2, 3]
    layer.mlp.router = norm(8)
    layer.mlp.router.weight = nn.Parameter(torch.full((4, 8), float("nan")))
    layer.mlp.experts = nn.Module()
    one, two = (12 // etp, 8), (8, 6 // etp)
    layer.mlp.experts.linear_fc1 = stand_in(None, etp, weight0=one, weight1=one)
    layer.mlp.experts.linear_fc2 = stand_in(None, etp, weight0=two, weight1=two)
    for module in (layer.mlp.experts.linear_fc1, layer.mlp.experts.linear_fc2):
        module.explicit_expert_comm = True
    for x in "qk":
        setattr(layer.self_attention, f"{x}_layernorm", norm(4))
    model: Any = nn.Module()
    model.config = SimpleNamespace(
        tensor_model_parallel_size=tp, num_layers=2, layernorm_zero_centered_gamma=centered
    )
    model.decoder = nn.Module()
    model.decoder.layers = nn.ModuleList([layer])
    model.decoder.final_layernorm = norm(8)
    model.output_layer = stand_in("column", tp, weight=(12 // tp, 8))
    return model


def write_model(folder: Path) -> Path:
    """A hub folder of two layers and four experts."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (10, 8),
        "model.norm.weight": (8,),
        "lm_head.weight": (10, 8),
    }
    for layer in (0, 1):
        at = f"model.layers.{layer}."
        for x, n in (("q", 16), ("k", 8), ("v", 8)):
            shapes[f"{at}self_attn.{x}_proj.weight"] = (n, 8)
        shapes[f"{at}self_attn.o_proj.weight"] = (8, 16)
        for x in ("self_attn.q_norm", "self_attn.k_norm"):
            shapes[f"{at}{x}.weight"] = (4,)
        for x in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}{x}.weight"] = (8,)
        shapes[f"{at}mlp.gate.weight"] = (4, 8)
        for e in range(4):
            for x in ("gate", "up"):
                shapes[f"{at}mlp.experts.{e}.{x}_proj.weight"] = (6, 8)
            shapes[f"{at}mlp.experts.{e}.down_proj.weight"] = (8, 6)
    tensors = {
        name: normal_tensor(shape, torch.float32, k)
        for k, (name, shape) in enumerate(shapes.items())
    }
    return write_hf(folder, tensors, CONFIG)
