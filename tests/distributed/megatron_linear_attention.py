"""A real Megatron model of gated delta networks; `fla`'s kernels, which compute, need a GPU and are absent."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

KERNELS = {
    "fla.modules.convolution": "causal_conv1d",
    "fla.modules.l2norm": "l2norm",
    "fla.ops.gated_delta_rule": "chunk_gated_delta_rule",
}
"""What Megatron imports, some versions less."""


def absent(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("the kernels of fla need a GPU")


for name, kernel in KERNELS.items():
    words = name.split(".")
    for end in range(1, len(words) + 1):
        sys.modules.setdefault(".".join(words[:end]), types.ModuleType(".".join(words[:end])))
    vars(sys.modules[name])[kernel] = absent

from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm

from tests.parity.megatron_logits import build


def build_linear(hf: dict[str, Any], vocab: int, tp: int, dtype: torch.dtype) -> Any:
    """A model whose every layer has linear attention and a dense MLP."""
    parts = GatedDeltaNetSubmodules(
        in_proj=ColumnParallelLinear, out_norm=WrappedTorchNorm, out_proj=RowParallelLinear
    )
    layers = hf["num_hidden_layers"]
    linear = {
        key: hf[key] for key in hf if key.startswith("linear_")
    } | {"experimental_attention_variant": "gated_delta_net", "linear_attention_freq": [1] * layers}  # fmt: skip
    dense = {k: v for k, v in hf.items() if k != "num_experts"}
    attention = ModuleSpec(module=GatedDeltaNet, submodules=parts)
    model = build(dense, vocab, tp, 1, 1, dtype, attention=attention, **linear)
    for module in model.modules():
        if isinstance(module, GatedDeltaNet):
            # Megatron-core 0.16 marks them as parallel without the axis, which Megatron-FSDP asks for.
            for param in (module.conv1d.weight, module.A_log, module.dt_bias):
                vars(param)["partition_dim"] = 0
    return model
